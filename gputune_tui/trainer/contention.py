"""What else the machine did while a block was timed: other processes, the host of a virtual machine, pressure."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path

from gputune_tui.domain.trial import Block
from gputune_tui.trainer.pressure import PressureWatch

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
REST_S = 0.03
"""Processes that use no CPU for so long are at rest: three ticks of the kernel's account."""
LONGEST_REST_S = 2.0
"""A loader that is slower than that is not waited for."""
_BUSY = (0, 1, 2, 5, 6)
"""Columns of /proc/stat: user (guests included), nice, system, irq, softirq (proc(5))."""
_IDLE = (3, 4)
_STEAL = 7


@dataclass(frozen=True)
class CpuReading:
    """CPU seconds since some fixed moment, summed over the CPUs that this process may use."""

    busy_s: float
    idle_s: float
    steal_s: float
    own_s: float
    """Of this process and all that it started."""


@dataclass(frozen=True)
class CpuShares:
    """What became of the CPU time between two readings; of CPU-seconds there were."""

    others_fraction: float
    idle_fraction: float
    steal_fraction: float


class CpuWatch:
    """Reads /proc; about 0.1 ms a reading. None where the kernel does not tell."""

    def __init__(self, proc: Path = Path("/proc"), cpus: frozenset[int] | None = None) -> None:
        self._proc = proc
        self._cpus = frozenset(os.sched_getaffinity(0)) if cpus is None else cpus

    def read(self) -> CpuReading | None:
        """Now."""
        try:
            lines = (self._proc / "stat").read_text().splitlines()
            rows = [_columns(line) for line in lines if self._counts(line)]
            if not rows:
                return None
            busy = sum(row[column] for row in rows for column in _BUSY)
            idle = sum(row[column] for row in rows for column in _IDLE)
            steal = sum(row[_STEAL] for row in rows)
            children = self._childrens_ticks()
        except (OSError, ValueError, IndexError):
            return None
        usage, reaped = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        own_s = usage.ru_utime + usage.ru_stime + reaped.ru_utime + reaped.ru_stime + children / TICKS_PER_S
        return CpuReading(busy / TICKS_PER_S, idle / TICKS_PER_S, steal / TICKS_PER_S, own_s)

    def wait_for_rest(self) -> None:
        """Until what this process has started uses no CPU any more, as loader workers do once all is prefetched."""
        until = time.monotonic() + LONGEST_REST_S
        try:
            before = None
            while before != (before := self._childrens_ticks()) and time.monotonic() < until:
                time.sleep(REST_S)
        except (OSError, ValueError, IndexError):
            return

    def _childrens_ticks(self) -> int:
        return sum(map(self._ticks_of, self._descendants()))

    def _counts(self, line: str) -> bool:
        name = line.partition(" ")[0]
        return name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in self._cpus

    def _descendants(self) -> list[int]:
        found: list[int] = []
        waiting = [os.getpid()]
        while waiting:
            children = self._children_of(waiting.pop())
            found += children
            waiting += children
        return found

    def _children_of(self, pid: int) -> list[int]:
        children: list[int] = []
        for task in (self._proc / str(pid) / "task").iterdir():
            try:
                children += map(int, (task / "children").read_text().split())
            except (ProcessLookupError, FileNotFoundError):
                if pid == os.getpid() and task.name == str(pid):
                    raise  # a kernel without CONFIG_PROC_CHILDREN: what workers use would count as others'
        return children

    def _ticks_of(self, pid: int) -> int:
        """Of one process and of those that it has waited for, such as the decoder that a worker starts per file."""
        try:
            fields = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except (ProcessLookupError, FileNotFoundError):
            return 0
        return sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime (proc(5))


def shares(before: CpuReading | None, after: CpuReading | None) -> CpuShares | None:
    """The shares between two readings; None where one is missing or no time has passed.

    Ticks are 10 ms long and a worker that ends in between leaves no trace, so figures below a few percent mean nothing.
    """
    if before is None or after is None:
        return None
    busy, idle = after.busy_s - before.busy_s, after.idle_s - before.idle_s
    steal = after.steal_s - before.steal_s
    total = busy + idle + steal
    if total <= 0:
        return None
    others = max(0.0, busy - (after.own_s - before.own_s))
    return CpuShares(min(1.0, others / total), max(0.0, idle / total), max(0.0, steal / total))


@dataclass(frozen=True)
class Reading:
    """Everything that is read before a block."""

    cpu: CpuReading | None
    pressure_at: float
    usage: resource.struct_rusage

    def from_here(self) -> Reading:
        """The same, but the own use counts from now on."""
        return replace(self, usage=resource.getrusage(resource.RUSAGE_SELF))


class BlockWatch:
    """Reads all of it at both ends of a block, outside the timed span; about half a millisecond together."""

    def __init__(self, cpu: CpuWatch | None = None, pressure: PressureWatch | None = None) -> None:
        self._cpu = cpu or CpuWatch()
        self._pressure = pressure or PressureWatch()
        self._begun: CpuReading | None = None

    def wait_for_rest(self) -> None:
        """Until loader workers have prefetched what they may, so that they take nothing from whose turn it is."""
        self._cpu.wait_for_rest()

    def begin(self) -> None:
        """The trial starts here."""
        self._begun = self._cpu.read()
        self._pressure.read()

    def since_begin(self) -> CpuShares | None:
        """What became of the CPUs since `begin`; None without it."""
        return None if self._begun is None else shares(self._begun, self._cpu.read())

    def read(self) -> Reading:
        """Just before a block. The own use comes last, so that the reading is no part of it."""
        return Reading(self._cpu.read(), self._pressure.read(), resource.getrusage(resource.RUSAGE_SELF))

    def block(
        self, before: Reading, samples: int, steps: int, elapsed_s: float, new_shapes: int | None = None
    ) -> Block:
        """The block that has just ended, with what surrounded it."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        use = shares(before.cpu, self._cpu.read())
        self._pressure.read()
        pressure, group_pressure = self._pressure.since(before.pressure_at)
        return Block(
            samples=samples,
            steps=steps,
            elapsed_s=elapsed_s,
            cpu_s=usage.ru_utime + usage.ru_stime - before.usage.ru_utime - before.usage.ru_stime,
            involuntary_switches=usage.ru_nivcsw - before.usage.ru_nivcsw,
            others_cpu_fraction=use.others_fraction if use else None,
            idle_cpu_fraction=use.idle_fraction if use else None,
            steal_fraction=use.steal_fraction if use else None,
            pressure=pressure,
            group_pressure=group_pressure,
            new_shapes=new_shapes,
        )


def _columns(line: str) -> list[int]:
    return [int(word) for word in line.split()[1:]]
