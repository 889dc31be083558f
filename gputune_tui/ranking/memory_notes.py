"""Remarks on a row's memory, in words: the moment at which it peaked, and the host's budget."""

from __future__ import annotations

from collections.abc import Sequence

from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import Launch, Trial
from gputune_tui.ranking.feasibility import is_over_host
from gputune_tui.units import bytes_text

SAME_PEAK_FRACTION = 0.02
"""Marks this close are one and the same: resident memory creeps up by pages in every phase."""
_MOMENTS = {"largest_batch": "the longest batch", "evaluation": "the evaluation step"}


def memory_notes(trial: Trial, budget: MemoryBudget) -> list[str]:
    """What a user should know about the trial's peaks under this budget."""
    notes = []
    if (moment := worst_moment(trial.launches)) is not None:
        notes.append(moment)
    if is_over_host(trial, budget) and trial.failure is None and trial.memory is not None:
        peak, limit = bytes_text(trial.memory.host_peak_bytes), bytes_text(budget.host_bytes)
        notes.append(f"host memory {peak} is over the host's budget of {limit}")
    return notes


def worst_moment(launches: Sequence[Launch]) -> str | None:
    """Which rehearsed moment set the largest peak and what the training before it took; None where training did."""
    told = [launch for launch in launches if launch.memory.device_peak_bytes is not None and launch.phase_peaks]
    if not told:
        return None
    launch = max(told, key=lambda one: one.memory.device_peak_bytes or 0)
    phase, before = "", 0
    mark = 0
    for peak in launch.phase_peaks:
        if peak.device_peak_bytes > mark * (1 + SAME_PEAK_FRACTION):
            phase, before = peak.phase, mark
        mark = max(mark, peak.device_peak_bytes)
    if phase not in _MOMENTS:
        return None
    return f"the peak is that of {_MOMENTS[phase]}; until then it was {bytes_text(before)}"
