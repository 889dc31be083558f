"""Does a trial hold more memory than its budget, whatever it was taken by: looked at from outside."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from gputune_tui.trial.watch import Watch

PERIOD_S = 0.25
"""Between two looks: a trial over its mark is ended within about a second."""
CPU_SLACK_BYTES = 64 << 20
"""As much more as the trial's own cap allows: below, the ranking judges by the peak; above, it is ended."""
GPU_SLACK_BYTES = 256 << 20
"""The size of a CUDA context is known only roughly where neighbours come and go."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class OverMark:
    """A trial that holds too much."""

    taken_bytes: int
    """As the device figure counts it."""
    budget_bytes: int


class MemoryMark:
    """Looks now and then; without a budget only at what the driver tells."""

    def __init__(
        self, budget_bytes: int | None, watch: Watch | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._budget_bytes = budget_bytes
        self._watch = watch
        self._clock = clock
        self._looked_at = float("-inf")
        self.driver_bytes: int | None = None
        """What the driver showed for the trial at the last look; None where it does not tell."""

    def look(self, pid: int | None, resident_mark_bytes: int | None) -> OverMark | None:
        """What is held, where that is too much; at most one look each `PERIOD_S`.

        Args:
            pid: of the trial's main process.
            resident_mark_bytes: the mark that a trial on the CPU gave (`protocol.Memory`).
        """
        budget, now = self._budget_bytes, self._clock()
        if now - self._looked_at < PERIOD_S:
            return None
        self._looked_at = now
        self.driver_bytes = None if self._watch is None else self._watch.device_bytes(pid)
        if budget is None:
            return None
        over = None
        if pid is not None and resident_mark_bytes is not None:
            over = over_on_cpu(resident_bytes(pid), resident_mark_bytes, budget)
        return over or over_on_gpu(self.driver_bytes, budget)


def over_on_cpu(resident: int | None, resident_mark_bytes: int, budget_bytes: int) -> OverMark | None:
    """Of a trial on the CPU: resident memory well above its mark."""
    if resident is None or resident <= resident_mark_bytes + CPU_SLACK_BYTES:
        return None
    return OverMark(budget_bytes + resident - resident_mark_bytes, budget_bytes)


def over_on_gpu(used_bytes: int | None, budget_bytes: int) -> OverMark | None:
    """Of a trial on a GPU: what the driver shows for its processes, well above the budget."""
    if used_bytes is None or used_bytes <= budget_bytes + GPU_SLACK_BYTES:
        return None
    return OverMark(used_bytes, budget_bytes)


def resident_bytes(pid: int) -> int | None:
    """Of one process, shared pages included; None where it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None
