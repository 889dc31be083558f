"""`export`: the best trial of a study, or the one named, in the form of a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gputune_tui.domain.study import MemoryBudget
from gputune_tui.engine.exporting import render_trial
from gputune_tui.errors import NothingFitsError, StudyError
from gputune_tui.export.files import write_atomically
from gputune_tui.export.registry import exporter_named
from gputune_tui.store.reading import Generation, read_study
from gputune_tui.units import parse_size


def export(given: dict[str, Any]) -> None:
    """Body of `export`.

    Raises:
        NothingFitsError: no trial fits, or the named one did not complete.
        StudyError, UsageError, EnvironmentProblem: the study, the names or the file.
    """
    exporter = exporter_named(given["target"])
    generation = newest_generation(Path(given["study"]))
    budget = budget_of(generation, given["budget"])
    rendered = render_trial(exporter, generation.identity, generation.trials, budget, {}, given["trial_id"])
    if given["output"] is None:
        click.echo(rendered.text, nl=False)
        return
    write_atomically(Path(given["output"]), rendered.text, given["force"])
    click.echo(f"trial {rendered.trial_id} written to {given['output']}", err=True)


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


def budget_of(generation: Generation, text: str | None) -> MemoryBudget:
    """The budget that was asked for, else the one that the newest trial ran under."""
    if text is not None:
        return MemoryBudget(parse_size(text), None, f"--budget {text.strip()}")
    budgets = [trial.budget_bytes for trial in generation.trials if trial.budget_bytes is not None]
    if not budgets:
        raise NothingFitsError("no trial of this study has run yet; nothing to export")
    return MemoryBudget(budgets[-1], None, "of the newest trial")
