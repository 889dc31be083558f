"""Peaks of a trial's memory and the cap that keeps it within its budget."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from enum import Enum
from pathlib import Path
from typing import Protocol

import torch

from gputune_tui.domain.trial import MemoryPeaks
from gputune_tui.trainer.faults import OverBudget, bytes_words

CPU_CAP_SLACK_BYTES = 64 << 20
"""The data limit counts address space that is never touched (arenas); resident memory is judged afterwards."""
MAX_CONTEXT_BYTES = 3 << 30
"""A larger difference of free memory is a neighbour that came meanwhile, not our CUDA context."""
TYPICAL_CONTEXT_BYTES = 512 << 20
"""Assumed where the difference says nothing (trial_engine.md section 2: 0.3 to 0.6 GiB)."""


class Cap(Enum):
    """What refuses a trial memory beyond its budget."""

    DATA_LIMIT = "data_limit"
    """Of the main process, on the host: loader workers are free of it."""
    ALLOCATOR = "allocator"
    """On the device."""


class MemoryWatch(Protocol):
    """Peaks and cap of one trial on its device. Create it just before the model is built."""

    fixed_overhead_bytes: int
    """What the process takes before its model is built; part of `device_peak_bytes`."""
    resident_mark_bytes: int | None
    """Resident memory at which the device figure of a CPU trial is its budget; None without one."""

    @property
    def cap(self) -> Cap | None:
        """The cap that is in force now; None without one."""

    def peaks(self) -> MemoryPeaks:
        """The peaks so far."""

    def lift_cap(self) -> None:
        """Remove the cap, so that a trial that hit it can still say so."""


def _status_bytes(field: str, pid: int | str = "self") -> int | None:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return None


class HostMemory:
    """This process's own high-water mark, which the kernel keeps exactly.

    What its loader workers hold beside it is added by the supervisor, which looks at the process tree from outside
    while blocks are timed: a look from in here would take the step's own time.
    """

    def __init__(self) -> None:
        self._peak_bytes = 0

    def peak_bytes(self) -> int | None:
        """The peak so far; None where /proc does not tell."""
        own = _status_bytes("VmHWM")
        if own is None:
            return None
        # The kernel's counter is approximate and may go back by some pages.
        self._peak_bytes = max(self._peak_bytes, own)
        return self._peak_bytes


class CpuMemory:
    """A CPU trial: resident high-water mark less what was resident before the model, plus the fixed overhead."""

    def __init__(self, budget_bytes: int | None, fixed_overhead_bytes: int | None, threads: int) -> None:
        self._host = HostMemory()
        self._before_bytes = _status_bytes("VmRSS") or 0
        # "5" starts the high-water mark anew (proc(5)); where it is refused the mark of the import stays in it.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self.fixed_overhead_bytes = fixed_overhead_bytes or self._before_bytes
        self.resident_mark_bytes = None
        self._has_set_limit = False
        if budget_bytes is not None:
            self.resident_mark_bytes = self._before_bytes + budget_bytes - self.fixed_overhead_bytes
            self._cap(budget_bytes, threads)

    def _cap(self, budget_bytes: int, threads: int) -> None:
        room = budget_bytes - self.fixed_overhead_bytes
        if room <= 0:
            raise OverBudget(
                f"the interpreter with torch alone takes {bytes_words(self.fixed_overhead_bytes)}, "
                f"more than the budget of {bytes_words(budget_bytes)}",
                self.fixed_overhead_bytes,
            )
        stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
        stacks = threads * (8 << 20 if stack == resource.RLIM_INFINITY else stack)
        limit = min(sys.maxsize, (_status_bytes("VmData") or 0) + room + stacks + CPU_CAP_SLACK_BYTES)
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if hard == resource.RLIM_INFINITY or limit < hard:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
            self._has_set_limit = True

    @property
    def cap(self) -> Cap | None:
        """The data limit, unless it is the user's own or was lifted."""
        return Cap.DATA_LIMIT if self._has_set_limit and process_is_capped() else None

    def peaks(self) -> MemoryPeaks:
        """Device and own host peak from /proc."""
        mark = self._host.peak_bytes()
        growth = max(0, (mark or 0) - self._before_bytes)
        device = None if mark is None else self.fixed_overhead_bytes + growth
        return MemoryPeaks(device_peak_bytes=device, host_peak_bytes=mark)

    def lift_cap(self) -> None:
        """Raise the soft data limit to the hard one."""
        lift_data_limit()


def lift_data_limit() -> None:
    """Raise this process's soft data limit to its hard one."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


class CudaMemory:
    """A CUDA trial: the allocator's peaks plus the context; the cap is the allocator's own fraction."""

    resident_mark_bytes: int | None = None
    cap: Cap | None

    def __init__(self, device: torch.device, budget_bytes: int | None, free_before_bytes: int | None) -> None:
        self._device = device
        self._host = HostMemory()
        free, total = torch.cuda.mem_get_info(device)
        context = None if free_before_bytes is None else free_before_bytes - free - torch.cuda.memory_reserved(device)
        plausible = context is not None and 0 < context <= MAX_CONTEXT_BYTES
        self.fixed_overhead_bytes = context if context is not None and plausible else TYPICAL_CONTEXT_BYTES
        torch.cuda.reset_peak_memory_stats(device)
        if budget_bytes is not None:
            room = budget_bytes - self.fixed_overhead_bytes
            if room <= 0:
                raise OverBudget(
                    f"the CUDA context alone takes {bytes_words(self.fixed_overhead_bytes)}, "
                    f"more than the budget of {bytes_words(budget_bytes)}",
                    self.fixed_overhead_bytes,
                )
            torch.cuda.set_per_process_memory_fraction(min(1.0, room / total), device)
        self.cap = None if budget_bytes is None else Cap.ALLOCATOR

    def peaks(self) -> MemoryPeaks:
        """The allocator's counters; reading them does not wait for the device."""
        stats = torch.cuda.memory_stats(self._device)
        reserved = int(stats.get("reserved_bytes.all.peak", 0))
        return MemoryPeaks(
            peak_allocated_bytes=int(stats.get("allocated_bytes.all.peak", 0)),
            peak_reserved_bytes=reserved,
            device_peak_bytes=reserved + self.fixed_overhead_bytes,
            host_peak_bytes=self._host.peak_bytes(),
            alloc_retries=int(stats.get("num_alloc_retries", 0)),
        )

    def lift_cap(self) -> None:
        """The allocator frees what the report needs; nothing to do."""


def process_is_capped() -> bool:
    """True where a data limit is in force in this process."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY


def cap_room_bytes() -> int | None:
    """How far this process is from its data limit; None without one."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    data = _status_bytes("VmData", os.getpid())
    return None if limit == resource.RLIM_INFINITY or data is None else limit - data
