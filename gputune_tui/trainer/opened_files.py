"""The data files of a trial: what it and its loader workers open, seen through Python's own audit events."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputune_tui.domain.job import JOB_VARIABLE
from gputune_tui.trainer.describe import is_users_file
from gputune_tui.trainer.events import fd_identity

PIPE_BYTES = 1 << 20
"""Room for some ten thousand names that workers open during one block; the largest that Linux gives anybody."""
CODE_SUFFIXES = (".py", ".pyc", ".so")
NO_DATA_PLACES = ("/proc/", "/sys/", "/dev/shm/torch_", "/usr/lib", "/lib", "/etc/")
MOST_FILES = 200_000
SCAN_S = 2.0
"""A folder on a slow server is not walked for longer than this; what was found by then is what is known."""


@dataclass(frozen=True)
class DataFile:
    """What matters of one file."""

    size_bytes: int
    device: int
    """Number of the file system that it is on."""


class OpenedFiles:
    """Paths that were opened for reading, in this process and in all that it forks.

    A worker writes each new name to a pipe, without waiting: one that finds the pipe full says it at the next opening.
    Files that only native code opens (torchvision.io, LMDB) are found while they are open or mapped. Files beside
    those that were opened belong to the same data: a trial is too short to open them all.
    """

    def __init__(self, named: Iterable[str] = ()) -> None:
        """`named` are paths that the user gave the workload: they stand in where nothing was seen to be opened."""
        self._named = tuple(path for name in named if (path := _absolute(name)))
        self.is_complete = True
        """False where there are more files than were looked at."""
        self._owner = os.getpid()
        self._noted: set[str] = set()
        """Names as they were given to `open`, in this process and before it was forked."""
        self._seen: set[str] = set()
        """Absolute: what a name means depends on the folder that the process is in at the time."""
        self._is_listening = True
        self._read_fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._write_fd, 1031, PIPE_BYTES)  # F_SETPIPE_SZ, which Python 3.10 does not know everywhere
        self._pipe = fd_identity(self._read_fd)
        self._rest = b""
        self._folders_walked: Counter[str] = Counter()
        self._data: dict[str, DataFile] = {}
        job = os.environ.get(JOB_VARIABLE)
        self._own_folder = f"{Path(job).parent}/" if job else None
        sys.addaudithook(self._on_event)

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and self._is_listening:
            path, _mode, flags = arguments
            if isinstance(path, str | bytes) and not (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_CREAT)):
                self._note(os.fsdecode(path))

    def _note(self, path: str) -> None:
        if path in self._noted or len(self._noted) >= MOST_FILES:
            return
        self._noted.add(path)
        where = _absolute(path)
        if where is None or where in self._seen:
            return
        if os.getpid() == self._owner:
            self._seen.add(where)
            return
        if fd_identity(self._write_fd) != self._pipe:
            return  # closed by the user's code: the number may be a file of theirs by now
        try:
            os.write(self._write_fd, os.fsencode(where) + b"\0")
        except OSError:
            self._noted.discard(path)

    @contextlib.contextmanager
    def not_data(self) -> Iterator[None]:
        """What is opened inside is no data: pretrained weights, our own reading."""
        before, self._is_listening = self._is_listening, False
        try:
            yield
        finally:
            self._is_listening = before

    def drain(self) -> None:
        """Take what the workers have said, so that the pipe has room again."""
        if fd_identity(self._read_fd) != self._pipe:
            self.is_complete = False
            return
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._read_fd, PIPE_BYTES):
                *names, self._rest = (self._rest + data).split(b"\0")
                self._seen.update(map(os.fsdecode, names))

    def data_files(self) -> dict[str, DataFile]:
        """The data's regular files by path."""
        with self.not_data():
            self.drain()
            self._seen.update(_held_by([os.getpid(), *own_children()]))
            for path in {os.path.normpath(path) for path in self._seen} - self._data.keys():
                self._add(path)
            if not self._data:
                self._add_named()
            self._add_neighbours()
        return self._data

    def _add(self, path: str) -> None:
        if not self._may_be_data(path):
            return
        if len(self._data) >= MOST_FILES:
            self.is_complete = False
            return
        with contextlib.suppress(OSError, ValueError):
            found = os.stat(path)
            if stat.S_ISREG(found.st_mode) and found.st_size:
                self._data[path] = DataFile(found.st_size, found.st_dev)

    def _add_named(self) -> None:
        deadline = time.perf_counter() + SCAN_S
        for name in self._named:
            self._add(name)
            for folder, _folders, files in os.walk(name):
                for file in files:
                    if time.perf_counter() > deadline:
                        self.is_complete = False
                        return
                    self._add(os.path.join(folder, file))

    def _may_be_data(self, path: str) -> bool:
        if path.startswith(NO_DATA_PLACES) or path.endswith(CODE_SUFFIXES) or not is_users_file(path):
            return False
        return self._own_folder is None or not path.startswith(self._own_folder)

    def _add_neighbours(self) -> None:
        """Files of the same kind in folders of which several were opened, and in those beside several such folders."""
        deadline = time.perf_counter() + SCAN_S
        suffixes: dict[str, set[str]] = {}
        counts: Counter[str] = Counter()
        for path in self._data:
            folder = os.path.dirname(path)
            counts[folder] += 1
            suffixes.setdefault(folder, set()).add(os.path.splitext(path)[1])
        parents: dict[str, set[str]] = {}
        for folder in counts:
            parents.setdefault(os.path.dirname(folder), set()).add(folder)
        wanted = {folder: suffixes[folder] for folder, count in counts.items() if count > 1}
        for parent, folders in parents.items():
            if len(folders) > 1 and parent != "/":
                kinds = set().union(*(suffixes[folder] for folder in folders))
                wanted |= {entry: kinds for entry in _folders_in(parent) if entry not in wanted}
        for folder, kinds in wanted.items():
            if self._folders_walked[folder] == 0:
                with contextlib.suppress(OSError):
                    for entry in os.scandir(folder):
                        if time.perf_counter() > deadline:
                            self.is_complete = False
                            return
                        if os.path.splitext(entry.name)[1] in kinds and entry.path not in self._data:
                            self._add(entry.path)
                self._folders_walked[folder] += 1


def _absolute(path: str) -> str | None:
    """Where a name leads from here; None where the folder that this process is in was removed."""
    if os.path.isabs(path):
        return path
    with contextlib.suppress(OSError):
        return os.path.abspath(path)
    return None


def own_children() -> list[int]:
    """Processes that this one has started and that still live."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # a trial that may open no further file is told of by what it does next
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError, ValueError):
                found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def _folders_in(parent: str) -> list[str]:
    with contextlib.suppress(OSError):
        return [entry.path for entry in os.scandir(parent) if entry.is_dir(follow_symlinks=True)]
    return []


def _held_by(pids: list[int]) -> set[str]:
    """Files that the processes have open or mapped as shared, which only data is: libraries are mapped as private."""
    found: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if _is_open_for_reading(pid, entry.name):
                        found.add(os.readlink(entry.path))
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
                for line in maps:
                    _span, modes, _offset, _device, inode, *path = line.rstrip("\n").split(maxsplit=5)
                    if modes.endswith("s") and inode != "0" and path:
                        found.add(path[0])
    return {path for path in found if path.startswith("/") and not path.endswith(" (deleted)")}


def _is_open_for_reading(pid: int, fd: str) -> bool:
    for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "flags":  # octal, as open(2) takes them
            return int(value, 8) & os.O_ACCMODE != os.O_WRONLY
    return False
