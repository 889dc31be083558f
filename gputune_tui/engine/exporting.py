"""Turn stored trials into a file: which trial, under which budget, beside which baseline."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gputune_tui.domain.knobs import KnobValue, assignments_text
from gputune_tui.domain.script_order import script_order
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import BATCH_KNOBS, nearest_to_baseline
from gputune_tui.domain.study import MemoryBudget, StudyIdentity
from gputune_tui.domain.template import told_knobs
from gputune_tui.domain.trial import Trial, TrialState
from gputune_tui.engine.events import Exported, Previewed
from gputune_tui.engine.requests import Export, Preview
from gputune_tui.engine.study_session import StudySession
from gputune_tui.errors import GputuneError, NothingFitsError, UsageError
from gputune_tui.export.files import write_atomically
from gputune_tui.export.registry import Render, renderer_named
from gputune_tui.export.report import report_of
from gputune_tui.export.target import Rendered
from gputune_tui.ranking.feasibility import smallest_peak
from gputune_tui.ranking.leaderboard import Leaderboard, Row, leaderboard
from gputune_tui.units import bytes_text


@dataclass(frozen=True)
class TrialExport:
    """One trial in the form of a target."""

    trial_id: int
    rendered: Rendered


def export_from(session: StudySession, order: Export) -> Exported:
    """Write one trial of an open study, ranked under its budget, to a file.

    Raises:
        UsageError: there is no such format or trial, the file exists, or it cannot be there.
        NothingFitsError: nothing is ranked, or the named trial did not complete.
        EnvironmentProblem: the disk is full or fails.
    """
    export = _render_from(session, order.target, order.trial_id)
    path = Path(os.path.abspath(os.path.expanduser(order.path)))
    write_atomically(path, export.rendered.text, order.force)
    return Exported(str(path), export.trial_id, export.rendered.remarks)


def preview_from(session: StudySession, order: Preview) -> Previewed:
    """What `export_from` would write, or why it cannot."""
    try:
        export = _render_from(session, order.target, order.trial_id)
    except GputuneError as error:
        return Previewed(order.trial_id, order.target, "", str(error))
    return Previewed(order.trial_id, order.target, export.rendered.text)


def _render_from(session: StudySession, target: str, trial_id: int | None) -> TrialExport:
    opened = session.opened
    return render_trial(
        renderer_named(target), opened.identity, session.trials, opened.budget, opened.baseline, trial_id
    )  # fmt: skip


def render_trial(
    render: Render,
    identity: StudyIdentity,
    trials: Sequence[Trial],
    budget: MemoryBudget,
    baseline: Mapping[str, KnobValue],
    trial_id: int | None,
) -> TrialExport:
    """The export of one trial, or of the best one.

    Args:
        render: what writes the format.
        identity: of the generation that `trials` belong to.
        trials: all trials of that generation.
        budget: under which they are ranked.
        baseline: knobs that `--baseline` changes; the complete trial nearest to it is what the evidence compares with.
        trial_id: None takes the best one.

    Raises:
        UsageError: there is no trial of that number, or the target cannot hold this workload.
        NothingFitsError: nothing is ranked, or the named trial did not complete.
    """
    if identity.script is not None:
        baseline = {**identity.script.knobs(), **baseline}
    reference = _reference(identity, trials, baseline)
    board = leaderboard(trials, budget, reference)
    row = chosen_row(board, trial_id, budget)
    settings = row.trial.settings
    command = reproducing_command(identity, settings, budget)
    order = None
    if identity.script is not None:
        order = script_order(identity.workload, identity.script, settings, identity.environment.device_kind)
    report = report_of(row, board, identity, budget, reference, command, order)
    return TrialExport(row.trial.id, render(report))


def _reference(
    identity: StudyIdentity, trials: Sequence[Trial], baseline: Mapping[str, KnobValue]
) -> TrainSettings | None:
    complete = [trial.settings for trial in trials if trial.state is TrialState.COMPLETE]
    if not complete:
        return None
    return nearest_to_baseline(complete, baseline, identity.global_batch_size, identity.environment.device_kind)


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
    if budget.host_bytes is not None and not budget.host_is_default:
        words += ["--host-budget", str(budget.host_bytes)]
    if identity.cold:
        words.append("--cold")
    words += ["--set", _named_knobs(identity, settings)]
    if workload.command:
        for name, meanings in workload.flags.items():
            words += ["--flag", f"{name}:{','.join(f'{value}={said}' for value, said in meanings.items())}"]
        if workload.samples_per_step is not None:
            words += ["--samples-per-step", str(workload.samples_per_step)]
        words += ["--", *workload.command]
    return shlex.join(words)


def _named_knobs(identity: StudyIdentity, settings: TrainSettings) -> str:
    """All knobs; of a command that nobody has looked at, only those that it is told."""
    workload = identity.workload
    if not workload.command or identity.script is not None:
        return settings.text()
    told = told_knobs(workload) | set(BATCH_KNOBS)
    return assignments_text({name: value for name, value in settings.as_dict().items() if name in told})
