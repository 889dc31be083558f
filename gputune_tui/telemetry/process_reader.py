"""Who runs: the processes that the driver names and those of this program's trials, with what /proc tells of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from gputune_tui.domain.job import JOB_VARIABLE
from gputune_tui.domain.telemetry import ProcessSnapshot
from gputune_tui.telemetry.host_reader import FRACTION_DIGITS, printable_text
from gputune_tui.telemetry.nvml_reader import GpuProcess

T = TypeVar("T")

COMMAND_CHARACTERS = 1000
"""Longer command lines are cut: a snapshot is one line of a pipe."""
KEEPER = b"keeper.py"
"""In the arguments of the process above a trial, which carries the trial's environment and computes nothing."""


@dataclass(frozen=True)
class Details:
    """What /proc tells of one process; None where it is unreadable."""

    user: str | None = None
    cpu_fraction: float | None = None
    resident_bytes: int | None = None
    command: str = ""


class ProcessReader:
    """Keeps a hold on each process between ticks: CPU use is a difference of two readings."""

    def __init__(self, parent_pid: int | None = None) -> None:
        """`parent_pid`: the program whose trials are listed, this process's parent by default."""
        self._parent_pid = os.getppid() if parent_pid is None else parent_pid
        self._known: dict[int, psutil.Process] = {}

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
        process = self._known.get(pid)
        try:
            if process is not None and not process.is_running():
                process = None
            is_new = process is None
            if process is None:
                process = self._known[pid] = psutil.Process(pid)
            with process.oneshot():
                user = _or_none(process.username)
                percent = _or_none(process.cpu_percent)
                memory = _or_none(process.memory_info)
                return Details(
                    user=None if user is None else printable_text(user),
                    # The first reading has nothing to be compared with.
                    cpu_fraction=None if is_new or percent is None else round(percent / 100, FRACTION_DIGITS),
                    resident_bytes=None if memory is None else memory.rss,
                    command=_command(process),
                )
        except (psutil.Error, OSError, ValueError, OverflowError):
            # Gone, or a number of another namespace that means nothing here.
            self._known.pop(pid, None)
            return Details()

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


def _command(process: psutil.Process) -> str:
    arguments = _or_none(process.cmdline)
    # Kernel threads and zombies have no arguments, but a name.
    words = " ".join(arguments) if arguments else _or_none(process.name) or ""
    return printable_text(words)[:COMMAND_CHARACTERS]


def _or_none(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except (psutil.Error, OSError, KeyError):
        return None
