"""`tune` and `trial`: run, print the ranking, and say by the exit code whether anything fits."""

from __future__ import annotations

from typing import Any

import click

from gputune_tui.cli.driving import drive
from gputune_tui.cli.options import study_config
from gputune_tui.cli.output import write_json
from gputune_tui.cli.progress import ProgressPrinter, outcome_text
from gputune_tui.cli.tables import leaderboard_table
from gputune_tui.domain.knobs import read_assignments
from gputune_tui.domain.space import SearchSpace
from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import FailureReason, Trial, TrialState
from gputune_tui.engine.commands import Command, MeasureAgain, RunTrial, Search
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import EngineEvent, SearchFinished, TrialFinished
from gputune_tui.engine.study_session import StudySession
from gputune_tui.errors import EnvironmentProblem, GputuneError, NothingFitsError, UsageError, WorkloadError
from gputune_tui.ranking.document import study_document
from gputune_tui.ranking.feasibility import is_over_host, smallest_peak
from gputune_tui.ranking.leaderboard import Leaderboard
from gputune_tui.units import bytes_text, parse_duration

MEMORY_REASONS = (FailureReason.OVER_BUDGET, FailureReason.DEVICE_OOM)
ENVIRONMENT_REASONS = (
    FailureReason.SHM,
    FailureReason.DISK_FULL,
    FailureReason.FILE_LIMIT,
    FailureReason.HOST_OOM,
    FailureReason.KILLED,
)


def tune(command: tuple[str, ...] | None, given: dict[str, Any]) -> None:
    """Body of `tune`.

    Raises:
        NothingFitsError: no setting fits.
        WorkloadError: every trial failed, or the baseline by a fault of the workload.
    """
    config = study_config(command, given)
    max_time = given["max_time"]
    if given["space"] is not None:
        SearchSpace.parse(given["space"])  # a typing error is told before the workload is imported
    max_time_s = None if max_time is None else parse_duration(max_time)
    search = Search(given["space"], given["sampler"], max_time_s, given["race"])
    again = [] if given["again"] is None else [MeasureAgain(read_trial_ids(given["again"]))]
    stopped: list[str] = []

    def listen(event: EngineEvent) -> None:
        if isinstance(event, SearchFinished) and event.stopped_because:
            stopped.append(event.stopped_because)

    engine = _run_and_print(config, [*again, search], given["json_path"], listen)
    board = engine.session.board()
    if (doubtful := [row.trial.id for row in board.rows if row.worth_measuring_again]) != []:
        click.echo(again_text(doubtful), err=True)
    if board.best is None:
        raise why_nothing_ranks(engine.session, board)


def trial(command: tuple[str, ...] | None, given: dict[str, Any]) -> None:
    """Body of `trial`.

    Raises:
        GputuneError: by the reason of its failure; NothingFitsError where it completed over budget.
    """
    finished: list[Trial] = []

    def listen(event: EngineEvent) -> None:
        if isinstance(event, TrialFinished):
            finished.append(event.trial)

    knobs = read_assignments(given["knobs"])
    engine = _run_and_print(study_config(command, given), [RunTrial(knobs)], given["json_path"], listen)
    row = engine.session.board().row(finished[-1].id)
    assert row is not None
    if row.trial.state is not TrialState.COMPLETE:
        raise failure_of(row.trial)
    if row.feasible is False and is_over_host(row.trial, engine.session.opened.budget):
        raise NothingFitsError(f"it does not fit: {host_words([row.trial], engine.session.opened.budget)}")
    if row.feasible is False:
        peak = row.memory.device_peak_bytes if row.memory else None
        budget = engine.session.opened.budget.device_bytes
        raise NothingFitsError(f"it does not fit: peak {bytes_text(peak)}, budget {bytes_text(budget)}")


DISTURBED = "disturbed"
"""What `--again` takes for all rows that are worth it."""


def read_trial_ids(text: str) -> tuple[int, ...]:
    """The ids of `--again`; none for `disturbed`.

    Raises:
        UsageError: neither.
    """
    if text.strip() == DISTURBED:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"--again {text}: write ids of trials, as in --again 3,7, or --again {DISTURBED}")
    return tuple(map(int, parts))


def again_text(trial_ids: list[int]) -> str:
    """How to measure disturbed rows again."""
    ids = ",".join(map(str, trial_ids))
    which = f"trial {ids} was" if len(trial_ids) == 1 else f"trials {ids.replace(',', ', ')} were"
    return f"note: {which} disturbed while measured; the same command with --again {ids} measures again"


def _run_and_print(config: Any, commands: list[Command], json_path: str | None, listen: Any) -> Engine:
    """Run; print what there is even if a signal or a full disk ended it early."""
    printer = ProgressPrinter()
    engine = Engine()
    try:
        drive(engine, config, commands, printer, listen)
    except GputuneError:
        if engine.is_open and engine.session.trials:
            print_results(engine.session, json_path)
        raise
    print_results(engine.session, json_path)
    return engine


def print_results(session: StudySession, json_path: str | None) -> None:
    """The ranking on stdout, or JSON where it was asked for."""
    board = session.board()
    opened = session.opened
    if json_path is not None:
        write_json(json_path, study_document(str(session.path), opened.identity, opened.budget, board))
    if json_path != "-":
        click.echo(leaderboard_table(board, opened.budget, session.reference))


def why_nothing_ranks(session: StudySession, board: Leaderboard) -> GputuneError:
    """The failure that stands for a search without a ranked trial."""
    trials = [row.trial for row in board.rows]
    budget = bytes_text(session.opened.budget.device_bytes)
    complete = [row for row in board.rows if row.trial.state is TrialState.COMPLETE]
    too_large = [row for row in complete if row.feasible is False]
    out_of_memory = [t for t in trials if t.failure and t.failure.reason in MEMORY_REASONS]
    over_host = [t for t in trials if is_over_host(t, session.opened.budget)]
    if over_host and len(over_host) == len(too_large) + len(out_of_memory):
        return NothingFitsError(f"nothing fits: {host_words(over_host, session.opened.budget)}")
    if too_large or out_of_memory:
        return NothingFitsError(f"nothing fits the budget of {budget}: {_peak_words(trials)}")
    if complete:
        reason = next((row.disqualified for row in complete if row.disqualified), "no memory peak is known")
        return WorkloadError(f"every setting is disqualified: {reason}")
    failed = next((t for t in trials if t.failure is not None), None)
    return failure_of(failed) if failed else WorkloadError("no trial was run")


def host_words(trials: list[Trial], budget: MemoryBudget) -> str:
    """The smallest host peak of trials that pass the host's budget, beside it, and what helps."""
    smallest = smallest_peak(trials, "host_peak_bytes")
    peak = bytes_text(smallest[0] if smallest else None)
    return (
        f"the smallest host memory seen is {peak}, the host's budget {bytes_text(budget.host_bytes)}; fewer workers, "
        "a smaller prefetch or a larger --host-budget"
    )


def _peak_words(trials: list[Trial]) -> str:
    smallest = smallest_peak(trials)
    if smallest is None:
        return "no trial got far enough to tell its peak"
    peak, is_bound = smallest
    if is_bound:
        return f"the smallest peak seen is {bytes_text(peak)} and more was needed; try a larger --budget"
    return f"the smallest peak seen is {bytes_text(peak)}; try a larger --budget, or smaller micro-batches"


def failure_of(trial: Trial) -> GputuneError:
    """The failure of one trial as the program's own, with its exit code."""
    assert trial.failure is not None
    reason = trial.failure.reason
    text = outcome_text(trial) + (f"; log: {trial.failure.log}" if trial.failure.log else "")
    if reason in MEMORY_REASONS:
        return NothingFitsError(text)
    if reason in ENVIRONMENT_REASONS:
        return EnvironmentProblem(text)
    return UsageError(text) if reason is FailureReason.INVALID else WorkloadError(text)
