"""Measure rows again that something disturbed: new launches take the place of the old ones, whatever they tell."""

from __future__ import annotations

from gputune_tui.domain.trial import Trial, TrialState
from gputune_tui.engine.commands import MeasureAgain
from gputune_tui.engine.running import Task
from gputune_tui.engine.study_session import StudySession
from gputune_tui.errors import UsageError


def measure_again(session: StudySession, command: MeasureAgain) -> Task:
    """As many launches of each trial as it has outside of races. The old ones stay in the journal, and count no more.

    Those of a race stay: they count beside those of the others that ran in the same rounds, and alone not at all.

    Raises:
        UsageError: there is no such trial in this generation of the study, it did not complete, or it has launches of
            races alone.
    """
    trials = wanted_trials(session, command)
    for number, trial in enumerate(trials, 1):
        alone = sum(launch.round is None for launch in trial.launches)
        yield from session.run_again(trial, alone, keep=False, number=number, total=len(trials))


def wanted_trials(session: StudySession, command: MeasureAgain) -> list[Trial]:
    """The trials that the command means.

    Raises:
        UsageError: see `measure_again`.
    """
    board = session.board()
    if not command.trial_ids:
        return sorted((row.trial for row in board.rows if row.worth_measuring_again), key=lambda trial: trial.id)
    found = []
    for trial_id in dict.fromkeys(command.trial_ids):
        row = board.row(trial_id)
        if row is None:
            known = ", ".join(str(trial.id) for trial in session.trials) or "none"
            raise UsageError(f"there is no trial {trial_id} to measure again in {session.path}; it holds {known}")
        if row.trial.state is not TrialState.COMPLETE:
            raise UsageError(f"trial {trial_id} did not complete, so there is nothing to measure again")
        if all(launch.round is not None for launch in row.trial.launches):
            raise UsageError(
                f"trial {trial_id} was measured in the rounds of a race alone, where launches count beside those "
                "of the others, so it cannot be measured again by itself; race again with another --study, or leave "
                "it out of --again"
            )
        found.append(row.trial)
    return found
