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
from gputune_tui.telemetry.nvml_processes import GpuProcess
from gputune_tui.telemetry.proc_stat import CLOCK_TICKS_PER_S, Stat, read_stat

COMMAND_CHARACTERS = 1000
"""Longer command lines are cut: a snapshot is one line of a pipe."""
KEEPER = b"keeper.py"
"""In the arguments of the process above a trial, which carries the trial's environment and computes nothing."""


FIRST_NAMESPACE = "pid:[4026531836]"
"""The machine's own PID namespace (PROC_PID_INIT_INO of the kernel); in any other the driver's numbers may be the
machine's, and then name nobody here, or the wrong one."""
GPU_FILES = ("/dev/nvidia", "/dev/nvhost", "/dev/nvmap", "/dev/dxg", "/dev/dri")
"""What a process on a GPU has open."""


@dataclass(frozen=True)
class Details:
    """What /proc tells of one process; None where it is unreadable."""

    user: str | None = None
    cpu_fraction: float | None = None
    resident_bytes: int | None = None
    command: str = ""
    started: int | None = None
    parent_pid: int | None = None
    running_s: float | None = None
    is_foreign: bool = False
    is_gone: bool = False


class ProcessReader:
    """Keeps the last CPU time of each process between ticks: use is a difference.

    Reads /proc itself: psutil opens five files for what two hold, and a busy node has dozens of rows.
    """

    def __init__(
        self,
        parent_pid: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        namespace: str | None = None,
    ) -> None:
        """`parent_pid`: the program whose trials are listed, this process's parent by default; `namespace`: of PIDs,
        as /proc/self/ns/pid names it."""
        self._doubts_numbers = (_namespace() if namespace is None else namespace) != FIRST_NAMESPACE
        self._parent_pid = os.getppid() if parent_pid is None else parent_pid
        self._clock = clock
        self._known: dict[int, tuple[Stat, float]] = {}
        self._users: dict[int, str] = {}
        self._trials: frozenset[int] = frozenset()

    def read(self, on_gpus: Iterable[GpuProcess]) -> tuple[ProcessSnapshot, ...]:
        """Rows by GPU as the driver lists them, then the trials' processes that are on none."""
        on_gpus = tuple(on_gpus)
        trials = self._trials = self._trial_pids()
        placed = {process.pid for process in on_gpus}
        others = [pid for pid in trials if pid not in placed]
        details = {pid: self._details(pid) for pid in dict.fromkeys([*(p.pid for p in on_gpus), *others])}
        self._known = {pid: process for pid, process in self._known.items() if pid in details}
        on_none = [GpuProcess(pid, NO_DEVICE, None, "") for pid in others]
        return tuple(_row(process, details[process.pid], process.pid in trials) for process in (*on_gpus, *on_none))

    def _details(self, pid: int) -> Details:
        folder = f"/proc/{pid}"
        try:
            stat, now = read_stat(folder), self._clock()
            user = self._user(os.stat(folder).st_uid)
        except (OSError, ValueError, IndexError):
            # Gone, or a number of another namespace that means nothing here.
            self._known.pop(pid, None)
            is_gone = not self._doubts_numbers and not _exists(pid)
            return Details(is_foreign=not is_gone, is_gone=is_gone)
        if self._doubts_numbers and pid not in self._trials and not _holds_gpu(folder):
            return Details(is_foreign=True)
        before = self._known.get(pid)
        self._known[pid] = (stat, now)
        cpu_fraction = None
        if before is not None and before[0].started == stat.started and now > before[1]:
            cpu_fraction = round(max(0.0, stat.cpu_s - before[0].cpu_s) / (now - before[1]), FRACTION_DIGITS)
        running_s = round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - stat.started / CLOCK_TICKS_PER_S), 1)
        command = _command(folder, stat.name)
        return Details(user, cpu_fraction, stat.resident_bytes, command, stat.started, stat.parent_pid, running_s)

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


NO_DEVICE = -1
"""Stands for the GPU of a process that is on none."""


def _row(process: GpuProcess, details: Details, is_trial: bool) -> ProcessSnapshot:
    is_on_gpu = process.device_index != NO_DEVICE
    return ProcessSnapshot(
        pid=process.pid,
        device_index=process.device_index if is_on_gpu else None,
        user=details.user,
        gpu_memory_bytes=process.gpu_memory_bytes,
        cpu_fraction=details.cpu_fraction,
        resident_bytes=details.resident_bytes,
        command=details.command,
        is_trial=is_trial,
        started=details.started,
        parent_pid=details.parent_pid,
        running_s=details.running_s,
        kind=process.kind,
        sm_fraction=process.sm_fraction,
        gpu_instance=process.gpu_instance,
        is_foreign=details.is_foreign,
        is_gone=details.is_gone,
    )


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    """Whether there is such a process, though /proc may hide it (hidepid); true of what is no number of one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _holds_gpu(folder: str) -> bool:
    """Whether it has a GPU's files open; true as well where its files cannot be seen: it is then another user's."""
    try:
        numbers = os.listdir(f"{folder}/fd")
    except OSError:
        return True
    for number in numbers:
        with contextlib.suppress(OSError):
            if os.readlink(f"{folder}/fd/{number}").startswith(GPU_FILES):
                return True
    return False


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


def _command(folder: str, name: str) -> str:
    """Kernel threads and zombies have no arguments, but a name."""
    with contextlib.suppress(OSError), open(f"{folder}/cmdline", "rb") as file:
        arguments = file.read(4 * COMMAND_CHARACTERS).rstrip(b"\0").replace(b"\0", b" ")
        if arguments:
            return arguments.decode("utf-8", "replace")[:COMMAND_CHARACTERS]
    return name
