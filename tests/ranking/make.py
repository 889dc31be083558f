"""Trials, launches and blocks made up for the tests of ranking and export."""

from __future__ import annotations

from collections.abc import Sequence

from gputune_tui.domain.environment import Environment
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget, StudyIdentity, WorkloadRef
from gputune_tui.domain.trial import (
    Block,
    Failure,
    FailureReason,
    GuardRecord,
    Launch,
    MemoryPeaks,
    StepBreakdown,
    Trial,
    TrialState,
)

MIB = 1 << 20
BUDGET = MemoryBudget(1024 * MIB, None, "--budget 1GiB")
HEALTHY = GuardRecord((4.0, 3.8, 3.6), (1.0, 0.9, 0.8), 0, 0, True, 0.0)


def blocks(*rates: float, samples: int = 16) -> tuple[Block, ...]:
    """Blocks of the given samples/s."""
    return tuple(Block(samples, 2, samples / rate) for rate in rates)


def launch(
    *rates: float,
    peak: int | None = 100 * MIB,
    host_peak: int | None = None,
    retries: int | None = None,
    guard: GuardRecord | None = HEALTHY,
    notes: tuple[str, ...] = (),
    breakdown: StepBreakdown | None = None,
) -> Launch:
    """A launch with blocks of the given samples/s."""
    memory = MemoryPeaks(device_peak_bytes=peak, host_peak_bytes=host_peak, alloc_retries=retries)
    return Launch(blocks(*rates), (0.1, 0.2), 6, memory, breakdown, guard, notes)


def complete(id: int, *launches: Launch, settings: TrainSettings | None = None) -> Trial:  # noqa: A002 (its name)
    """A COMPLETE trial; settings differ by id unless given."""
    return Trial(id, settings or TrainSettings(micro_batch_size=id), TrialState.COMPLETE, launches=launches)


def failed(
    id: int,  # noqa: A002 (its name)
    reason: FailureReason,
    *,
    in_workload: bool = False,
    seen: int | None = None,
    cap: int | None = None,
    settings: TrainSettings | None = None,
) -> Trial:
    """A FAIL trial."""
    return Trial(
        id,
        settings or TrainSettings(micro_batch_size=id),
        TrialState.FAIL,
        Failure(reason, "what happened", "/logs/trial", in_workload),
        partial_memory=MemoryPeaks(device_peak_bytes=seen),
        budget_bytes=cap,
    )


def identity(options: dict[str, str] | None = None, command: Sequence[str] = ()) -> StudyIdentity:
    """A study of `lm` on a CPU."""
    workload = WorkloadRef("lm", options or {"size": "tiny"}, tuple(command))
    environment = Environment("node", "cpu", "a CPU", None, None, None, "2.6.0", "3.11.7", 2.0, 8 << 30, 64 * MIB)
    return StudyIdentity(workload, "ab" * 32, 16, environment)
