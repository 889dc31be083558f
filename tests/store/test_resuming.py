"""The resume rule: which trial makes another run of its settings needless."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputune_tui.domain.trial import FailureReason, MemoryPeaks, Trial, TrialState
from gputune_tui.store.reading import finished_trial
from tests.store.samples import GIB, complete, failed, settings

MEMORY = (FailureReason.OVER_BUDGET, FailureReason.DEVICE_OOM, FailureReason.HOST_OOM)
FROM_OUTSIDE = (FailureReason.STALE, FailureReason.KILLED, FailureReason.DISK_FULL)


@pytest.mark.parametrize("budget_bytes", [1, 4 * GIB, 64 * GIB])
def test_a_complete_trial_counts_under_any_budget(budget_bytes: int) -> None:
    assert finished_trial([complete(1)], settings(), budget_bytes) == complete(1)


def test_other_settings_do_not_count() -> None:
    assert finished_trial([complete(1)], settings(8), GIB) is None


@pytest.mark.parametrize("reason", list(FailureReason))
def test_a_failure_under_the_same_budget_counts_unless_it_came_from_outside(reason: FailureReason) -> None:
    found = finished_trial([failed(1, reason)], settings(), 4 * GIB)
    assert (found is None) == (reason in FROM_OUTSIDE)


@pytest.mark.parametrize("reason", list(FailureReason))
def test_more_memory_is_another_chance_only_for_what_lacked_it(reason: FailureReason) -> None:
    found = finished_trial([failed(1, reason)], settings(), 5 * GIB)
    assert (found is None) == (reason in FROM_OUTSIDE + MEMORY)


@pytest.mark.parametrize("reason", MEMORY)
def test_what_did_not_fit_without_a_limit_or_in_more_does_not_fit_now(reason: FailureReason) -> None:
    assert finished_trial([failed(1, reason, None)], settings(), 64 * GIB) is not None
    assert finished_trial([failed(1, reason)], settings(), GIB) is not None


def test_of_several_the_last_complete_one_counts() -> None:
    crash = failed(3, FailureReason.CRASH)
    assert finished_trial([complete(1), complete(2), crash], settings(), GIB) == complete(2)
    assert finished_trial([crash, complete(4)], settings(), GIB) == complete(4)


def test_a_running_trial_does_not_count() -> None:
    assert finished_trial([Trial(1, settings(), TrialState.RUNNING)], settings(), GIB) is None


def over_host(host_budget_bytes: int, peak_bytes: int, reason: FailureReason = FailureReason.OVER_BUDGET) -> Trial:
    """A trial that was ended since its processes took more of the host's memory than they may."""
    seen = MemoryPeaks(device_peak_bytes=1, host_peak_bytes=peak_bytes)
    return replace(failed(1, reason), partial_memory=seen, host_budget_bytes=host_budget_bytes)


@pytest.mark.parametrize(
    ("device", "host", "runs_again"),
    [(4, 2, False), (64, 2, False), (1, 2, False), (4, 1, False), (4, 3, True), (4, None, True)],
)
def test_only_a_larger_budget_of_the_host_is_another_chance_for_what_passed_it(
    device: int, host: int | None, runs_again: bool
) -> None:
    limit = None if host is None else host * GIB
    found = finished_trial([over_host(2 * GIB, 3 * GIB)], settings(), device * GIB, limit)
    assert (found is None) is runs_again


def test_a_failure_on_the_device_is_none_on_the_host() -> None:
    fitted = over_host(8 * GIB, 3 * GIB)
    assert finished_trial([fitted], settings(), 4 * GIB, 64 * GIB) is not None
    assert finished_trial([fitted], settings(), 5 * GIB, 8 * GIB) is None
