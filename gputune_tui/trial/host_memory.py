"""Host memory of a running trial: its process tree as seen from outside, while its blocks are timed."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.25
"""Between two looks at a tree."""
DUTY_FRACTION = 0.01
"""A look takes at most this share of the time: reading a worker's pages costs milliseconds of a CPU that the trial
may want, so that of a large tree fewer readings are taken."""
SHARED_PLACES = ("/dev/shm/", "/memfd:")
"""What links of /proc/PID/fd begin with where torch keeps the batches that its workers pass on."""


@dataclass(frozen=True)
class TreeMemory:
    """Memory of a process tree at one moment; what its processes share counts once."""

    main_bytes: int
    """Resident memory of the trial's main process."""
    others_bytes: int
    """What the other processes hold for themselves, and shared memory that the main process has not mapped."""
    others: int
    """How many other processes there are."""

    @property
    def total_bytes(self) -> int:
        """Both together."""
        return self.main_bytes + self.others_bytes


def read_tree(root: int, main: int, proc: Path = Path("/proc")) -> TreeMemory | None:
    """The tree under `root`, of which `main` is counted with all that it maps; None where it is gone or not readable.

    Pages that a worker shares with the process that forked it are that process's. Batches on their way from a worker
    are in nobody's resident memory: they are found as open files, each once whoever has it open.
    """
    pids = _tree(root, proc)
    own = _fields(proc / str(main) / "status", ("VmRSS", "RssShmem"))
    if own is None:
        return None
    private, mapped_shared = 0, own["RssShmem"]
    others = [pid for pid in pids if pid != main]
    for pid in others:
        found = _fields(proc / str(pid) / "smaps_rollup", ("Private_Clean", "Private_Dirty", "Pss_Shmem"))
        if found is not None:
            # A shared page that one process alone has mapped is called private, and counts below.
            private += max(0, found["Private_Clean"] + found["Private_Dirty"] - found["Pss_Shmem"])
            mapped_shared += found["Pss_Shmem"]
    shared = max(mapped_shared, _open_shared_bytes([main, *others], proc))
    return TreeMemory(own["VmRSS"], private + max(0, shared - own["RssShmem"]), len(others))


class HostMemoryWatch:
    """Looks at a trial's tree now and then; the caller says when it may."""

    def __init__(self) -> None:
        self._others_peak_bytes = 0
        self._tree_peak_bytes = 0
        self._next = 0.0

    def look(self, root: int, main: int) -> TreeMemory | None:
        """Take a reading if one is due; None where none was, or the tree is gone."""
        began = time.monotonic()
        if began < self._next:
            return None
        tree = read_tree(root, main)
        self._next = time.monotonic() + max(INTERVAL_S, (time.monotonic() - began) / DUTY_FRACTION)
        if tree is not None:
            self._others_peak_bytes = max(self._others_peak_bytes, tree.others_bytes)
            self._tree_peak_bytes = max(self._tree_peak_bytes, tree.total_bytes)
        return tree

    def peak_bytes(self, main_peak_bytes: int | None) -> int | None:
        """The tree's peak: the main process's exact mark, where it is known, and the others' largest reading.

        The two need not have come at one moment, so it is an upper bound; None where nothing is known.
        """
        if main_peak_bytes is None:
            return self._tree_peak_bytes or None
        return max(main_peak_bytes + self._others_peak_bytes, self._tree_peak_bytes)


def _tree(root: int, proc: Path) -> list[int]:
    """A process and its descendants, by the kernel's lists of children: /proc as a whole may hold thousands."""
    found, waiting = [root], [root]
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            for task in (proc / str(pid) / "task").iterdir():
                with contextlib.suppress(OSError, ValueError):
                    children = [int(word) for word in (task / "children").read_text().split()]
                    found += children
                    waiting += children
    return found


def _fields(path: Path, names: tuple[str, ...]) -> dict[str, int] | None:
    """Lines "Name: 123 kB" as bytes, 0 where one is missing; None where the file cannot be read."""
    values = dict.fromkeys(names, 0)
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in values and rest.strip():
            values[name] = int(rest.split()[0]) * 1024
    return values


def _open_shared_bytes(pids: list[int], proc: Path) -> int:
    """Bytes of the shared memory that the processes have open, each object once."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(proc / str(pid) / "fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith(SHARED_PLACES):
                        found = os.stat(entry.path)
                        if stat.S_ISREG(found.st_mode):
                            sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())
