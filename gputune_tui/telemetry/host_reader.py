"""The changing numbers of the host: CPU use, load, memory, shared memory. `host.py` has the limits."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from gputune_tui.domain.telemetry import HostSnapshot
from gputune_tui.telemetry.host import cpu_quota, effective_cpus, memory_limit
from gputune_tui.telemetry.io_reader import IoReader

FRACTION_DIGITS = 4
LIMITS_PERIOD_S = 10.0
"""Limits change rarely, and finding them means walking the cgroups."""
RATE_SPAN_S = 0.2
"""Rates are taken over no less: the kernel counts in ticks of 10 ms, and a CPU may see none of them for a moment."""


@dataclass(frozen=True)
class CpuTimes:
    """One line of /proc/stat, in clock ticks since boot."""

    busy: int
    """Everything but idle and waiting for disks; what the hypervisor took (steal) counts as busy."""
    iowait: int
    total: int


@dataclass(frozen=True)
class Limits:
    """What holds for a while."""

    at_s: float
    effective_cpus: float
    group: Path | None
    """The cgroup with the tightest quota."""
    has_memory_limit: bool


@dataclass(frozen=True)
class CpuCounters:
    """All counters of one moment."""

    at_s: float
    times: dict[int | None, CpuTimes]
    """By CPU number; None is all of them together."""
    group: Path | None
    group_usage_s: float | None


@dataclass(frozen=True)
class CpuRates:
    """Differences of two moments, as `HostSnapshot` has them."""

    cpu_fraction: float | None = None
    per_cpu_fractions: tuple[float, ...] = ()
    iowait_fraction: float | None = None


@dataclass(frozen=True)
class MachineMemory:
    """Of the machine, whatever limit this process has."""

    total_bytes: int
    available_bytes: int
    """What could be had without swapping: page cache counts as available."""


class HostReader:
    """Keeps the last counters: CPU numbers are differences of two."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        shm: Path = Path("/dev/shm"),
        clock: Callable[[], float] = time.monotonic,
        sys: Path = Path("/sys"),
    ) -> None:
        self._io = IoReader(proc, sys)
        self._proc = proc
        self._cgroup_root = cgroup_root
        self._shm = shm
        self._clock = clock
        self._limits: Limits | None = None
        self._before: CpuCounters | None = None
        self._rates = CpuRates()

    def read(self) -> HostSnapshot:
        """The host now; what cannot be read is None."""
        return self.read_with_memory()[0]

    def read_with_memory(self) -> tuple[HostSnapshot, MachineMemory]:
        """The host now, and the machine's memory apart from any limit."""
        now = self._clock()
        if self._limits is None or now - self._limits.at_s >= LIMITS_PERIOD_S:
            self._limits = self._read_limits(now)
        limits = self._limits
        usage_s = None if limits.group is None else self._usage_s(limits.group)
        counters = CpuCounters(now, self._read_times(), limits.group, usage_s)
        if self._before is None or counters.at_s - self._before.at_s >= RATE_SPAN_S:
            if self._before is not None:
                self._rates = _rates(self._before, counters, limits.effective_cpus)
            self._before = counters
        shm_used, shm_total = self._shared_memory()
        memory = psutil.virtual_memory()
        limit, used = memory_limit(self._proc, self._cgroup_root) if limits.has_memory_limit else (None, None)
        host = HostSnapshot(
            hostname=printable_text(socket.gethostname()),
            cpu_fraction=self._rates.cpu_fraction,
            per_cpu_fractions=self._rates.per_cpu_fractions,
            effective_cpus=limits.effective_cpus,
            cpus=sum(cpu is not None for cpu in counters.times) or os.cpu_count() or 1,
            load_1=_load(),
            memory_used_bytes=used if limit is not None else memory.total - memory.available,
            memory_total_bytes=memory.total,
            memory_limit_bytes=limit,
            shm_used_bytes=shm_used,
            shm_total_bytes=shm_total,
            iowait_fraction=self._rates.iowait_fraction,
            **self._io.read(now),
        )
        return host, MachineMemory(memory.total, memory.available)

    def _read_limits(self, now: float) -> Limits:
        quota = cpu_quota(self._proc, self._cgroup_root)
        return Limits(
            at_s=now,
            effective_cpus=effective_cpus(self._proc, self._cgroup_root),
            group=None if quota is None else quota[1],
            has_memory_limit=memory_limit(self._proc, self._cgroup_root)[0] is not None,
        )

    def _usage_s(self, group: Path) -> float | None:
        """CPU time that a cgroup has used: v2 `cpu.stat`, v1 `cpuacct.usage` (mounted with cpu, or beside it)."""
        with contextlib.suppress(OSError, ValueError):
            for line in (group / "cpu.stat").read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "usage_usec":
                    return int(value) / 1e6
        folders = [group]
        with contextlib.suppress(ValueError):
            folders.append(self._cgroup_root.joinpath("cpuacct", *group.relative_to(self._cgroup_root).parts[1:]))
        for folder in folders:
            with contextlib.suppress(OSError, ValueError):
                return int((folder / "cpuacct.usage").read_text()) / 1e9
        return None

    def _read_times(self) -> dict[int | None, CpuTimes]:
        times: dict[int | None, CpuTimes] = {}
        with contextlib.suppress(OSError, ValueError), (self._proc / "stat").open() as file:
            for line in file:
                name, *fields = line.split()
                if not name.startswith("cpu"):
                    break
                # user nice system idle iowait irq softirq steal; what follows is contained in user and nice
                user, nice, system, idle, iowait, *rest = map(int, fields[:8])
                busy = user + nice + system + sum(rest)
                times[int(name[3:]) if name != "cpu" else None] = CpuTimes(busy, iowait, busy + idle + iowait)
        return times

    def _shared_memory(self) -> tuple[int | None, int | None]:
        with contextlib.suppress(OSError):
            info = os.statvfs(self._shm)
            return info.f_frsize * (info.f_blocks - info.f_bfree), info.f_frsize * info.f_blocks
        return None, None


def printable_text(text: str) -> str:
    """Replace what is no valid UTF-8 (Python carries it as lone surrogates, which no terminal or JSON reader takes)."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _rates(before: CpuCounters, after: CpuCounters, allowed_cpus: float) -> CpuRates:
    a, b = before.times, after.times
    # A CPU that has just come or gone would shift the others: for one tick they are all unknown.
    same = a.keys() == b.keys()
    return CpuRates(
        cpu_fraction=_use(before, after, allowed_cpus),
        per_cpu_fractions=tuple(_busy(a, b, [cpu]) or 0.0 for cpu in sorted(c for c in b if c is not None) if same),
        iowait_fraction=_fraction(b[None].iowait - a[None].iowait, b[None].total - a[None].total)
        if None in a and None in b
        else None,
    )


def _use(before: CpuCounters, after: CpuCounters, allowed_cpus: float) -> float | None:
    """Of the cgroup where a quota limits it, else of the CPUs that affinity allows."""
    if after.group is not None and after.group_usage_s is not None:
        if before.group != after.group or before.group_usage_s is None:
            return None
        return _fraction(after.group_usage_s - before.group_usage_s, (after.at_s - before.at_s) * allowed_cpus)
    return _busy(before.times, after.times, [cpu for cpu in os.sched_getaffinity(0) if cpu in after.times])


def _busy(before: dict[int | None, CpuTimes], after: dict[int | None, CpuTimes], cpus: Sequence[int]) -> float | None:
    pairs = [(before[cpu], after[cpu]) for cpu in cpus if cpu in before]
    return _fraction(sum(b.busy - a.busy for a, b in pairs), sum(b.total - a.total for a, b in pairs))


def _fraction(part: float, whole: float) -> float | None:
    """Between 0 and 1: the kernel's counters may run a little backwards or ahead."""
    return round(min(1.0, max(0.0, part / whole)), FRACTION_DIGITS) if whole > 0 else None


def _load() -> float | None:
    with contextlib.suppress(OSError):
        return round(os.getloadavg()[0], 2)
    return None
