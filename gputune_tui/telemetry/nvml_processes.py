"""Who uses a GPU, as the driver tells it: the lists of computing, drawing and MPS processes, and their share of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gputune_tui.telemetry import nvml_calls as calls
from gputune_tui.telemetry.nvml_calls import Answers

NOT_A_SIZE = 1 << 63
"""Where the driver does not tell a process's memory it answers with all bits set."""
NO_INSTANCE = 0xFFFFFFFF
"""What stands for the instance of a process where MIG is off."""
SUCCESS, NOT_FOUND = 0, 6
"""nvmlReturn_t: how the driver says that no process ran a kernel lately."""
FIRST_WINDOW_S = 1.0
LISTS = (("C", calls.COMPUTE_PROCESSES), ("G", calls.GRAPHICS_PROCESSES), ("M", calls.MPS_PROCESSES))


@dataclass(frozen=True)
class GpuProcess:
    """A process as the driver knows it."""

    pid: int
    device_index: int
    gpu_memory_bytes: int | None
    kind: str = "C"
    """Of its lists: C, G and M, joined by +."""
    sm_fraction: float | None = None
    gpu_instance: int | None = None


class ProcessLists:
    """The lists of one GPU."""

    def __init__(self, answers: Answers, index: int, wall_clock: Callable[[], float] = time.time) -> None:
        self._answers = answers
        self._index = index
        self._wall_clock = wall_clock
        self._asked_us: int | None = None

    def read(self, is_cut: bool) -> tuple[GpuProcess, ...]:
        """One entry per process and MIG instance, with the most memory that any list tells.

        Args:
            is_cut: MIG is on; the driver then does not tell the processes' shares.
        """
        found: dict[tuple[int, int | None], tuple[str, int | None]] = {}
        for kind, functions in LISTS:
            for process in self._answers.ask(functions) or ():
                told = process.usedGpuMemory
                size = None if told is None or told >= NOT_A_SIZE else int(told)
                instance = getattr(process, "gpuInstanceId", None)
                key = (int(process.pid), None if instance in (None, NO_INSTANCE) else instance)
                kinds, known = found.get(key, ("", None))
                size = known if size is None else max(size, known or 0)
                found[key] = (f"{kinds}+{kind}" if kinds and kind not in kinds else kinds or kind, size)
        shares = self._shares() if found and not is_cut else None
        return tuple(
            GpuProcess(pid, self._index, size, kind, None if shares is None else shares.get(pid, 0.0), instance)
            for (pid, instance), (kind, size) in found.items()
        )

    def _shares(self) -> Mapping[int, float] | None:
        """Share of the SMs' time by process since the last call; one that is not named ran nothing. None: not told."""
        now_us = int(self._wall_clock() * 1e6)
        since_us = self._asked_us or now_us - int(FIRST_WINDOW_S * 1e6)
        before = len(self._answers.errors)
        samples = self._answers.ask(calls.PROCESS_UTILIZATION, since_us)
        if samples is None:
            is_idle = self._answers.errors[before:] in ([NOT_FOUND], [SUCCESS])
            if is_idle:
                self._asked_us = now_us
            return {} if is_idle else None
        self._asked_us = now_us
        # Some drivers give samples of garbage now and then: shares of millions, and numbers of no process.
        return {int(sample.pid): sample.smUtil / 100 for sample in samples if sample.smUtil <= 100}
