"""A workload that fails by itself costs one trial; a fault of a setting costs that setting."""

from __future__ import annotations

import pytest

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import FailureReason
from gputune_tui.search.stop import stop_reason
from tests.ranking.make import complete, failed

REFERENCE = TrainSettings(micro_batch_size=16)


@pytest.mark.parametrize("reason", [FailureReason.CRASH, FailureReason.NO_DATA, FailureReason.ENDED_EARLY])
def test_the_workload_failing_at_the_reference_ends_the_search(reason: FailureReason) -> None:
    said = stop_reason([failed(1, reason, in_workload=True, settings=REFERENCE)], REFERENCE)
    assert said is not None
    assert "what happened" in said


@pytest.mark.parametrize(
    "reason",
    [
        FailureReason.DEVICE_OOM,
        FailureReason.OVER_BUDGET,
        FailureReason.HOST_OOM,
        FailureReason.SHM,
        FailureReason.INVALID,
        FailureReason.FILE_LIMIT,
        FailureReason.KILLED,
        FailureReason.DISK_FULL,
        FailureReason.STALE,
    ],
)
def test_a_fault_of_the_setting_does_not(reason: FailureReason) -> None:
    assert stop_reason([failed(1, reason, in_workload=True, settings=REFERENCE)], REFERENCE) is None


def test_another_setting_or_another_fault_does_not() -> None:
    assert stop_reason([], REFERENCE) is None
    assert stop_reason([complete(16, settings=REFERENCE)], REFERENCE) is None
    assert stop_reason([failed(1, FailureReason.CRASH, in_workload=True)], REFERENCE) is None
    assert stop_reason([failed(1, FailureReason.CRASH, settings=REFERENCE)], REFERENCE) is None
