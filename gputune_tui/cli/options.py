"""The options that sub-commands share, and the study configuration they add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from gputune_tui.domain.knobs import read_assignments
from gputune_tui.domain.space import BATCH_KNOBS, SearchSpace
from gputune_tui.domain.study import WorkloadRef, read_workload_options
from gputune_tui.domain.template import read_flags, told_knobs
from gputune_tui.engine.commands import StudyConfig
from gputune_tui.errors import UsageError
from gputune_tui.units import parse_duration

F = TypeVar("F", bound=Callable[..., Any])

LEAST_INTERVAL_S = 0.5

_STUDY_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option("-D", "options", multiple=True, metavar="KEY=VALUE", help="Option of the workload; repeat for more."),
    click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 or a GPU's UUID. Default: cuda if usable."),
    click.option("--budget", metavar="SIZE", help="Memory budget: 20GiB, 80%. Default: 90 % of what is free."),
    click.option("--host-budget", metavar="SIZE", 
                 help="Host memory budget of a trial and its workers. Default: all but a reserve."),
    click.option("--global-batch", type=click.IntRange(min=1), metavar="N", help="Samples per optimizer step."),
    click.option("--baseline", metavar="K=V,...", help="Knobs that the baseline sets differently."),
    click.option("--study", metavar="DIR", help="Where results are kept. Default: a state folder."),
    click.option("--python", metavar="PATH", help="Interpreter of the trials. Default: this one."),
    click.option("--seed", type=int, default=0, show_default=True, help="Seed of weights and data order."),
    click.option("--share", is_flag=True, help="Measure although somebody else uses the device."),
    click.option("--cold", is_flag=True, help="Drop the page cache of the files that trials read before each block."),
    click.option("--samples-per-step", type=click.IntRange(min=1), metavar="N",
                 help="Commands only: samples of one optimizer step. Default: the global batch."),
    click.option("--flag", "flags", multiple=True, metavar="K:V=WORDS,...",
                 help="Commands: words for values, precision:bf16=--amp"),
    click.option("--stall-timeout", default="120s", show_default=True, metavar="TIME",
                 help="End a trial that makes no progress for this long."),
    click.option("--trial-timeout", metavar="TIME", help="End a trial after this long. Default: no limit."),
)  # fmt: skip

_SEARCH_OPTIONS: tuple[Callable[[F], F], ...] = (
    click.option("--space", metavar='"K=V1,V2;..."', help="Values to try. Default: said before them."),
    click.option("--sampler", type=click.Choice(["grid", "random"]), default="grid", show_default=True,
                 help="Order of the settings."),
    click.option("--race", is_flag=True,
                 help="Short launches first, the clearly slower dropped, then rounds among the fastest."),
)  # fmt: skip


def study_options(command: F) -> F:
    """Add the options that decide what a study is."""
    return _with(_STUDY_OPTIONS, command)


def search_options(command: F) -> F:
    """Add the options that decide what a search tries, and how."""
    return _with(_SEARCH_OPTIONS, command)


def _with(options: Sequence[Callable[[F], F]], command: F) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def interval_of(text: str) -> float:
    """Seconds between two readings of the node.

    Raises:
        UsageError: no duration, or less than the driver has new values for.
    """
    seconds = parse_duration(text)
    if seconds < LEAST_INTERVAL_S:
        raise UsageError(f"--interval {text} is too short; the driver has newer values only after {LEAST_INTERVAL_S} s")
    return seconds


def json_option(command: F) -> F:
    """Add `--json FILE|-`."""
    return click.option(
        "--json",
        "json_path",
        metavar="FILE|-",
        callback=_place_for_json,
        help="Write the result as JSON; with - stdout carries JSON alone.",
    )(command)


def _place_for_json(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a place that cannot be before anything is run for it."""
    if value is not None and value != "-" and not Path(value).absolute().parent.is_dir():
        raise UsageError(f"cannot write {value}: there is no directory {Path(value).parent}; create it first")
    if value is not None and Path(value).is_dir():
        raise UsageError(f"cannot write {value}: it is a directory; give the name of a file")
    return value


def study_config(command: Sequence[str] | None, given: dict[str, Any]) -> StudyConfig:
    """The configuration of a workload, or of the command after `--`, and the shared options.

    Raises:
        UsageError: no workload, or an option that cannot be read.
    """
    timeout = given["trial_timeout"]
    workload = _workload(command, given)
    return StudyConfig(
        workload=workload,
        device=given["device"],
        budget=given["budget"],
        host_budget=given["host_budget"],
        global_batch_size=given["global_batch"] or given["samples_per_step"],
        baseline=read_assignments(given["baseline"] or ""),
        study=given["study"],
        python=given["python"],
        seed=given["seed"],
        stall_timeout_s=parse_duration(given["stall_timeout"]),
        trial_timeout_s=None if timeout is None else parse_duration(timeout),
        share=given["share"],
        cold=given["cold"],
        detects=_needs_detection(workload, given),
    )


def _needs_detection(workload: WorkloadRef, given: dict[str, Any]) -> bool:
    """Whether a command is to be looked at first: not where it is told everything that differs between its trials."""
    if not workload.command:
        return False
    told = told_knobs(workload)
    named = set(read_assignments(given["baseline"] or ""))
    for option in ("knobs", "knobs_a", "knobs_b"):
        named |= set(read_assignments(given.get(option) or ""))
    if (space := given.get("space")) is not None:
        named |= set(SearchSpace.parse(space).values)
    is_declared = given["global_batch"] is not None or given["samples_per_step"] is not None
    return not told or not is_declared or bool(named - told - set(BATCH_KNOBS))


def _workload(command: Sequence[str] | None, given: dict[str, Any]) -> WorkloadRef:
    names: Sequence[str] = given["workload"]
    if command is None:
        if not names:
            raise UsageError(
                "no workload given; name one (gputune-tui workloads lists them), a file ./train.py, "
                "or a command after --"
            )
        if len(names) > 1:
            raise UsageError(f"unexpected {names[1]!r}; a command as workload goes after --")
        if given["flags"]:
            raise UsageError("--flag is for commands; a workload class is given every knob")
        return WorkloadRef(names[0], read_workload_options(given["options"]))
    if names:
        raise UsageError(f"both a workload ({names[0]}) and a command after -- are given; choose one")
    if not command:
        raise UsageError("nothing follows --; write for example -- python train.py --bs {micro_batch_size}")
    if given["options"]:
        raise UsageError("-D is for workloads; give a command its options in the command itself")
    return WorkloadRef(
        " ".join(command),
        command=tuple(command),
        samples_per_step=given["samples_per_step"],
        flags=read_flags(given["flags"]),
    )
