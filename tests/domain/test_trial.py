"""What a trial's parts add up to."""

from __future__ import annotations

import pytest

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import (
    Block,
    FailureReason,
    Launch,
    MemoryPeaks,
    Trial,
    TrialState,
    largest_peaks,
)


def launch(device_peak: int | None, retries: int | None = None) -> Launch:
    return Launch((Block(8, 1, 0.5),), (0.5,), 2, MemoryPeaks(device_peak_bytes=device_peak, alloc_retries=retries))


def test_throughput_of_a_block() -> None:
    assert Block(samples=160, steps=10, elapsed_s=2.0).samples_per_s == 80.0


@pytest.mark.parametrize("state", list(TrialState))
def test_finished_states(state: TrialState) -> None:
    assert state.is_finished is (state.value in ("COMPLETE", "PRUNED", "FAIL"))


def test_what_ends_from_outside_is_run_again() -> None:
    again = {reason.value for reason in FailureReason if reason.says_nothing_of_the_settings}
    assert again == {"KILLED", "STALE", "DISK_FULL"}


def test_memory_is_the_largest_of_all_launches_field_by_field() -> None:
    trial = Trial(1, TrainSettings(), TrialState.COMPLETE, launches=(launch(10, 0), launch(None, 3), launch(7)))
    assert trial.memory == MemoryPeaks(device_peak_bytes=10, alloc_retries=3)


def test_a_failed_trial_tells_what_was_seen_of_it() -> None:
    seen = MemoryPeaks(device_peak_bytes=5)
    assert Trial(1, TrainSettings(), TrialState.FAIL, partial_memory=seen).memory == seen
    assert Trial(1, TrainSettings(), TrialState.WAITING).memory is None


def test_unknown_stays_unknown_and_zero_stays_zero() -> None:
    assert largest_peaks([MemoryPeaks(), MemoryPeaks()]) == MemoryPeaks()
    assert largest_peaks([MemoryPeaks(alloc_retries=0), MemoryPeaks()]).alloc_retries == 0
