"""Does a trial fit a memory budget; the budget is no part of a study, so any budget can be asked about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import FailureReason, MemoryPeaks, Trial, TrialState

_OUT_OF_DEVICE_MEMORY = (FailureReason.OVER_BUDGET, FailureReason.DEVICE_OOM)

Peak = Literal["device_peak_bytes", "host_peak_bytes"]


def is_feasible(trial: Trial, budget: MemoryBudget) -> bool | None:
    """True where the trial is known to fit, False where it is known not to; None where its peak is not known.

    The peaks of a trial that did not end well are lower bounds: they can rule it out, never in. A trial that failed
    under a smaller cap than this budget says nothing about what it would need here, unless its lower bound does. A
    host's budget that nobody asked for rules out what is known to pass it, and nothing else.
    """
    memory = trial.memory or MemoryPeaks()
    held = [(memory.device_peak_bytes, budget.device_bytes)]
    if budget.host_bytes is not None:
        held.append((memory.host_peak_bytes, budget.host_bytes))
    if any(peak is not None and peak > limit for peak, limit in held):
        return False
    if trial.state is not TrialState.COMPLETE:
        return False if _ran_out(trial, budget) else None
    asked_for = held[:1] if budget.host_is_default else held
    return None if any(peak is None for peak, _ in asked_for) else True


def passed_host_budget(trial: Trial) -> bool:
    """True for a trial that failed since its processes took more than the host's budget it ran under."""
    if trial.failure is None or trial.failure.reason is not FailureReason.OVER_BUDGET:
        return False
    peak = trial.memory.host_peak_bytes if trial.memory else None
    return peak is not None and trial.host_budget_bytes is not None and peak > trial.host_budget_bytes


def is_over_host(trial: Trial, budget: MemoryBudget) -> bool:
    """True where the trial is known to take more of the host's memory than this budget allows."""
    peak = trial.memory.host_peak_bytes if trial.memory else None
    return peak is not None and budget.host_bytes is not None and peak > budget.host_bytes


def _ran_out(trial: Trial, budget: MemoryBudget) -> bool:
    if trial.failure is None or trial.failure.reason not in _OUT_OF_DEVICE_MEMORY or passed_host_budget(trial):
        return False
    return trial.budget_bytes is None or trial.budget_bytes >= budget.device_bytes


def smallest_peak(trials: Iterable[Trial], of: Peak = "device_peak_bytes") -> tuple[int, bool] | None:
    """The smallest peak seen and whether it is a lower bound only; None where no trial told any.

    A trial that ended well tells what it needs. Only where none did, the lower bounds of the failed ones speak.
    """
    complete: list[int] = []
    bounds: list[int] = []
    for trial in trials:
        peak: int | None = getattr(trial.memory, of, None)
        if peak is not None:
            (complete if trial.state is TrialState.COMPLETE else bounds).append(peak)
    if complete:
        return min(complete), False
    return (min(bounds), True) if bounds else None
