"""When a search has no sense any more: the workload itself fails."""

from __future__ import annotations

from collections.abc import Iterable

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import FailureReason, Trial, TrialState

_FAULTS_OF_A_SETTING = frozenset(
    {
        FailureReason.DEVICE_OOM,
        FailureReason.OVER_BUDGET,
        FailureReason.HOST_OOM,
        FailureReason.SHM,
        FailureReason.INVALID,
        FailureReason.FILE_LIMIT,
        FailureReason.DISK_FULL,
        FailureReason.KILLED,
        FailureReason.STALE,
    }
)
"""Another setting, or another try, may well succeed after these, wherever they were raised."""


def stop_reason(trials: Iterable[Trial], reference: TrainSettings) -> str | None:
    """Why the search ends now, in one sentence; None where it goes on.

    The user's own code that fails at the reference setting fails everywhere: one trial is spent on it, not the grid.
    """
    for trial in trials:
        failure = trial.failure
        if (
            trial.settings == reference
            and trial.state is TrialState.FAIL
            and failure is not None
            and failure.in_workload
            and failure.reason not in _FAULTS_OF_A_SETTING
        ):
            return (
                f"the workload itself fails at the baseline setting, so no further setting is tried: {failure.message}"
            )
    return None
