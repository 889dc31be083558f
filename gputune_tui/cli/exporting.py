"""`export`: the best trial of a study, or the one named, in the form of a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gputune_tui.domain.study import MemoryBudget
from gputune_tui.engine.exporting import render_trial
from gputune_tui.engine.node import host_reserve_bytes
from gputune_tui.errors import NothingFitsError, StudyError
from gputune_tui.export.files import write_atomically
from gputune_tui.export.registry import renderer_named
from gputune_tui.store.reading import Generation, read_study
from gputune_tui.units import parse_size

OF_NEWEST = "of the newest trial"


def export(given: dict[str, Any]) -> None:
    """Body of `export`.

    Raises:
        NothingFitsError: no trial fits, or the named one did not complete.
        StudyError, UsageError, EnvironmentProblem: the study, the names or the file.
    """
    render = renderer_named(given["target"])
    generation = newest_generation(Path(given["study"]))
    budget = budget_of(generation, given["budget"], given["host_budget"])
    found = render_trial(render, generation.identity, generation.trials, budget, {}, given["trial_id"])
    for remark in found.rendered.remarks:
        click.echo(f"note: {remark}", err=True)
    if given["output"] is None:
        click.echo(found.rendered.text, nl=False)
        return
    write_atomically(Path(given["output"]), found.rendered.text, given["force"])
    click.echo(f"trial {found.trial_id} written to {given['output']}", err=True)


def newest_generation(path: Path) -> Generation:
    """The current trials of a study.

    Raises:
        StudyError: there is no study.
        NothingFitsError: it is empty.
    """
    if not path.exists():
        raise StudyError(f"there is no study {path}; gputune-tui studies lists those in the default place")
    contents = read_study(path)
    for problem in contents.problems:
        click.echo(f"note: {problem}", err=True)
    if contents.current is None:
        raise NothingFitsError(f"study {path} holds no trial yet; nothing to export")
    return contents.current


def budget_of(generation: Generation, text: str | None, host_text: str | None = None) -> MemoryBudget:
    """The budgets that were asked for, else those that the newest trial ran under.

    Raises:
        UsageError: not a size.
        NothingFitsError: no trial has run that could tell.
    """
    newest = next((trial for trial in reversed(generation.trials) if trial.budget_bytes is not None), None)
    if text is not None:
        device_bytes, source = parse_size(text), f"--budget {text.strip()}"
    elif newest is not None and newest.budget_bytes is not None:
        device_bytes, source = newest.budget_bytes, OF_NEWEST
    else:
        raise NothingFitsError("no trial of this study has run yet; nothing to export")
    if host_text is not None:
        return MemoryBudget(device_bytes, parse_size(host_text), source, f"--host-budget {host_text.strip()}")
    host_bytes = newest.host_budget_bytes if newest is not None else None
    # A trial keeps the figure and not who asked for it; the default follows from the memory of the host.
    total_bytes = generation.identity.environment.host_memory_bytes
    is_default = total_bytes is not None and host_bytes == total_bytes - host_reserve_bytes(total_bytes)
    return MemoryBudget(device_bytes, host_bytes, source, "" if host_bytes is None else OF_NEWEST, is_default)
