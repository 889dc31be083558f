"""The resume rule: which trial makes another run of its settings needless."""

from __future__ import annotations

import pytest

from gputune_tui.domain.trial import FailureReason, Trial, TrialState
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
