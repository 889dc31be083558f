"""Who runs: the processes that the driver names and those of this program's trials, with what /proc tells of them."""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from gputune_tui.domain.job import JOB_VARIABLE
from gputune_tui.domain.telemetry import ProcessSnapshot
from gputune_tui.telemetry.host_reader import FRACTION_DIGITS, printable_text
from gputune_tui.telemetry.nvml_reader import GpuProcess

COMMAND_CHARACTERS = 1000
"""Longer command lines are cut: a snapshot is one line of a pipe."""
KEEPER = b"keeper.py"
"""In the arguments of the process above a trial, which carries the trial's environment and computes nothing."""


CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Stat:
    """What is used of /proc/PID/stat (proc(5))."""

    name: str
    started: int
    """Clock ticks after boot; with the number it tells one process from another."""
    cpu_s: float
    """User and system time so far."""
    resident_bytes: int


@dataclass(frozen=True)
class Details:
    """What /proc tells of one process; None where it is unreadable."""

    user: str | None = None
    cpu_fraction: float | None = None
    resident_bytes: int | None = None
    command: str = ""


class ProcessReader:
    """Keeps the last CPU time of each process between ticks: use is a difference.

    Reads /proc itself: psutil opens five files for what two hold, and a busy node has dozens of rows.
    """

    def __init__(
        self,
        parent_pid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`parent_pid`: the program whose trials are listed, this process's parent by default."""
        self._parent_pid = os.getppid() if parent_pid is None else parent_pid
        self._clock = clock
        self._known: dict[int, tuple[Stat, float]] = {}
        self._users: dict[int, str] = {}

    def read(self, on_gpus: Iterable[GpuProcess]) -> tuple[ProcessSnapshot, ...]:
        """Rows by GPU as the driver lists them, then the trials' processes that are on none."""
        on_gpus = tuple(on_gpus)
        trials = self._trial_pids()
        placed = {process.pid for process in on_gpus}
        others = [pid for pid in trials if pid not in placed]
        details = {pid: self._details(pid) for pid in dict.fromkeys([*(p.pid for p in on_gpus), *others])}
        self._known = {pid: process for pid, process in self._known.items() if pid in details}
        rows: list[tuple[int, int | None, int | None]]
        rows = [(process.pid, process.device_index, process.gpu_memory_bytes) for process in on_gpus]
        rows += [(pid, None, None) for pid in others]
        return tuple(
            ProcessSnapshot(
                pid=pid,
                device_index=device_index,
                user=details[pid].user,
                gpu_memory_bytes=gpu_memory_bytes,
                cpu_fraction=details[pid].cpu_fraction,
                resident_bytes=details[pid].resident_bytes,
                command=details[pid].command,
                is_trial=pid in trials,
            )
            for pid, device_index, gpu_memory_bytes in rows
        )

    def _details(self, pid: int) -> Details:
        folder = f"/proc/{pid}"
        try:
            stat, now = _read_stat(folder), self._clock()
            user = self._user(os.stat(folder).st_uid)
        except (OSError, ValueError, IndexError):
            # Gone, or a number of another namespace that means nothing here.
            self._known.pop(pid, None)
            return Details()
        before = self._known.get(pid)
        self._known[pid] = (stat, now)
        cpu_fraction = None
        if before is not None and before[0].started == stat.started and now > before[1]:
            cpu_fraction = round(max(0.0, stat.cpu_s - before[0].cpu_s) / (now - before[1]), FRACTION_DIGITS)
        return Details(user, cpu_fraction, stat.resident_bytes, _command(folder, stat.name))

    def _user(self, uid: int) -> str:
        if uid not in self._users:
            try:
                self._users[uid] = printable_text(pwd.getpwuid(uid).pw_name)
            except KeyError:
                self._users[uid] = str(uid)
        return self._users[uid]

    def _trial_pids(self) -> frozenset[int]:
        """Below the program: what carries a trial's job in its environment, less the keepers."""
        marker = f"{JOB_VARIABLE}=".encode()
        found = set()
        for pid in _descendants(self._parent_pid):
            folder = Path("/proc", str(pid))
            with contextlib.suppress(OSError):
                environment = b"\0" + (folder / "environ").read_bytes()
                if b"\0" + marker in environment and KEEPER not in (folder / "cmdline").read_bytes():
                    found.add(pid)
        return frozenset(found)


def _descendants(root: int) -> Sequence[int]:
    """All processes below `root`."""
    found: list[int] = []
    level = [root]
    while level:
        children = [_children(pid) for pid in level]
        if None in children:
            # A kernel without the children files: every process of the machine has to be looked at.
            with contextlib.suppress(psutil.Error):
                return [process.pid for process in psutil.Process(root).children(recursive=True)]
            return []
        level = [pid for some in children for pid in some or ()]
        found += level
    return found


def _children(pid: int) -> Sequence[int] | None:
    """As the kernel lists them by thread; None where it has no such lists."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return ()  # gone
    found: list[int] = []
    for thread in threads:
        try:
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):
                return None
        except OSError:
            continue
    return found


def _read_stat(folder: str) -> Stat:
    """Raises OSError where it cannot be read, ValueError or IndexError where it is something else."""
    with open(f"{folder}/stat", "rb") as file:
        head, _, tail = file.read().rpartition(b")")
    # The name may hold spaces and brackets; fields are counted from its last bracket on, the state being the third.
    fields = tail.split()
    return Stat(
        name=head.partition(b"(")[2].decode("utf-8", "replace"),
        started=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S,
        resident_bytes=int(fields[21]) * PAGE_BYTES,
    )


def _command(folder: str, name: str) -> str:
    """Kernel threads and zombies have no arguments, but a name."""
    with contextlib.suppress(OSError), open(f"{folder}/cmdline", "rb") as file:
        arguments = file.read(4 * COMMAND_CHARACTERS).rstrip(b"\0").replace(b"\0", b" ")
        if arguments:
            return arguments.decode("utf-8", "replace")[:COMMAND_CHARACTERS]
    return name
