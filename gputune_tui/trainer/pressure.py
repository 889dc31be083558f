"""Pressure stall information of the machine and of this process's own cgroup, as shares of the time gone by."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gputune_tui.domain.conditions import Pressure

RESOURCES = ("cpu", "memory", "io")
PERIOD_S = 2.0
"""The kernel may bring its totals up to date only this often (PSI_FREQ of kernel/sched/psi.c): over less they say
nothing."""
KEPT = 64
"""Readings; two a block and a few before."""

_Totals = dict[str, float | None]


class PressureWatch:
    """Reads the totals; at most six small files, about 0.1 ms."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        group = _own_group(proc, cgroup_root)
        self._clock = clock
        self._machine = _Counters([(name, proc / "pressure" / name) for name in RESOURCES])
        self._group = _Counters([(name, group / f"{name}.pressure") for name in RESOURCES] if group else [])

    def read(self) -> float:
        """Take a reading; returns when."""
        now = self._clock()
        self._machine.read(now)
        self._group.read(now)
        return now

    def since(self, begin: float) -> tuple[Pressure | None, Pressure | None]:
        """Of the machine and of the cgroup up to the newest reading, from the one at `begin`.

        Where that is less than `PERIOD_S` ago, from the newest one that is as old; None where that is not told.
        """
        return self._machine.since(begin), self._group.since(begin)


class _Counters:
    """The totals of one place and their readings."""

    def __init__(self, files: list[tuple[str, Path]]) -> None:
        self._files = [(name, path) for name, path in files if _total_s(path) is not None]
        self._readings: deque[tuple[float, _Totals]] = deque(maxlen=KEPT)

    def read(self, now: float) -> None:
        if self._files:
            self._readings.append((now, {name: _total_s(path) for name, path in self._files}))

    def since(self, begin: float) -> Pressure | None:
        if not self._readings:
            return None
        end, after = self._readings[-1]
        old = [reading for reading in self._readings if reading[0] <= min(begin, end - PERIOD_S)]
        if not old:
            return None
        start, before = old[-1]

        def fraction(name: str) -> float | None:
            first, last = before.get(name), after.get(name)
            return None if first is None or last is None else min(1.0, max(0.0, (last - first) / (end - start)))

        return Pressure(*map(fraction, RESOURCES))


def _total_s(path: Path) -> float | None:
    """Seconds in which some task waited, since boot; None where the kernel keeps no account (psi=0 among others)."""
    try:
        for line in path.read_text(encoding="ascii").splitlines():
            if line.startswith("some "):
                return int(line.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        pass
    return None


def _own_group(proc: Path, root: Path) -> Path | None:
    """This process's folder in the unified hierarchy (cgroup v2), in a container the root of its mount."""
    try:
        lines = (proc / "self/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    path = next((line[len("0::") :] for line in lines if line.startswith("0::")), None)
    if path is None:
        return None
    folders = (base / path.lstrip("/") for base in (root, root / "unified"))
    bases = (root, root / "unified")
    return next((folder for folder in (*folders, *bases) if (folder / "cpu.pressure").is_file()), None)
