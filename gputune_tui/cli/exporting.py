"""`export`: the best trial of a study, or the one named, in the form of a target."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import nearest_to_baseline
from gputune_tui.domain.study import MemoryBudget, StudyIdentity
from gputune_tui.domain.trial import TrialState
from gputune_tui.errors import NothingFitsError, StudyError, UsageError
from gputune_tui.export.files import write_atomically
from gputune_tui.export.registry import exporter_named
from gputune_tui.export.report import report_of
from gputune_tui.ranking.feasibility import smallest_peak
from gputune_tui.ranking.leaderboard import Leaderboard, Row, leaderboard
from gputune_tui.store.reading import Generation, read_study
from gputune_tui.units import bytes_text, parse_size


def export(given: dict[str, Any]) -> None:
    """Body of `export`.

    Raises:
        NothingFitsError: no trial fits, or the named one did not complete.
        StudyError, UsageError, EnvironmentProblem: the study, the names or the file.
    """
    exporter = exporter_named(given["target"])
    generation = newest_generation(Path(given["study"]))
    budget = budget_of(generation, given["budget"])
    reference = reference_of(generation)
    board = leaderboard(generation.trials, budget, reference)
    row = chosen_row(board, given["trial_id"], budget)
    identity = generation.identity
    command = reproducing_command(identity, row.trial.settings, budget)
    text = exporter.render(report_of(row, board, identity, budget, reference, command))
    if given["output"] is None:
        click.echo(text, nl=False)
        return
    write_atomically(Path(given["output"]), text, given["force"])
    click.echo(f"trial {row.trial.id} written to {given['output']}", err=True)


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


def reference_of(generation: Generation) -> TrainSettings | None:
    """The complete trial nearest to the baseline: what the evidence compares with."""
    complete = [trial.settings for trial in generation.trials if trial.state is TrialState.COMPLETE]
    identity = generation.identity
    if not complete:
        return None
    return nearest_to_baseline(complete, {}, identity.global_batch_size, identity.environment.device_kind)


def chosen_row(board: Leaderboard, trial_id: int | None, budget: MemoryBudget) -> Row:
    """The row to export.

    Raises:
        UsageError: there is no trial of that number.
        NothingFitsError: nothing is ranked, or the named trial did not complete.
    """
    if trial_id is not None:
        row = board.row(trial_id)
        if row is None:
            raise UsageError(f"there is no trial {trial_id} in this study; it has {len(board.rows)} trials")
        if row.trial.state is not TrialState.COMPLETE:
            why = row.trial.failure.message if row.trial.failure else row.trial.state.value
            raise NothingFitsError(f"trial {trial_id} did not complete ({why}); nothing to export")
        return row
    if board.best is None:
        peak = smallest_peak(row.trial for row in board.rows)
        seen = f"; the smallest peak seen is {bytes_text(peak[0])}" if peak else ""
        raise NothingFitsError(
            f"no trial of this study fits the budget of {bytes_text(budget.device_bytes)}{seen}; nothing to export"
        )
    return board.best


def reproducing_command(identity: StudyIdentity, settings: TrainSettings, budget: MemoryBudget) -> str:
    """The command line that measures these settings again."""
    workload, environment = identity.workload, identity.environment
    device = environment.device_uuid or environment.device.partition(":")[0]
    words = ["gputune-tui", "trial"]
    if not workload.command:
        words.append(workload.name)
    words += [word for key, value in workload.options.items() for word in ("-D", f"{key}={value}")]
    words += [
        "--device",
        device,
        "--budget",
        str(budget.device_bytes),
        "--global-batch",
        str(identity.global_batch_size),
    ]
    words += ["--set", settings.text()]
    if workload.command:
        words += ["--samples-per-step", str(workload.samples_per_step), "--", *workload.command]
    return shlex.join(words)
