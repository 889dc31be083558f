"""Host memory of a running trial: its process tree as seen from outside, while its blocks are timed."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.5
"""Between two looks at a tree; one takes about 1 ms a process of the CPU of whoever looks."""
DUTY_FRACTION = 0.01
"""Walking a process's page tables takes about 20 ms a GiB of a CPU that the trial may want, so that it is done for at
most this share of the time."""
WALK_S = 0.02
"""A look goes on to the next process's page tables for no longer: whoever looks has deadlines to hold meanwhile."""
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


class TreeReader:
    """Reads the tree under `root`, of which `main` is counted with all that it maps.

    Pages that a worker shares with the process that forked it are that process's: how many these are is found by a
    walk through the worker's page tables now and then, and taken from its resident memory in between. A round of
    walks takes as many looks as it needs, one process each at least, and counts once it is complete. Batches on their
    way from a worker are in nobody's resident memory: they are found as open files, each once whoever has it open.
    """

    def __init__(self, root: int, main: int, proc: Path = Path("/proc")) -> None:
        self._root = root
        self._main = main
        self._proc = proc
        self._inherited: dict[int, int] = {}
        """By process, the anonymous memory that it shares with others, as the last round of walks found it."""
        self._found: dict[int, int] = {}
        """The same of the round that is under way."""
        self._waiting: list[int] = []
        """Those that this round has not come to."""
        self._walked_s = 0.0
        self._next_walk = 0.0

    @property
    def is_in_first_round(self) -> bool:
        """Whether processes are yet to be walked before there is a figure."""
        return bool(self._waiting) and not self._inherited

    def read(self) -> TreeMemory | None:
        """Now; None where the tree is gone or not readable, and within the first round of walks."""
        own = _fields(self._proc / str(self._main) / "status", ("VmRSS", "RssShmem"))
        if own is None:
            return None
        others = [pid for pid in _tree(self._root, self._proc) if pid != self._main]
        if others and not self._waiting and (time.monotonic() >= self._next_walk or not self._inherited):
            self._waiting, self._found, self._walked_s = others[::-1], {}, 0.0
        if self._waiting:
            self._walk()
        if self.is_in_first_round:
            return None
        # Those that came since the last walk, at a new epoch, were forked as those were that it met.
        usual = max(self._inherited.values(), default=0)
        private = 0
        for pid in others:
            anonymous = _fields(self._proc / str(pid) / "status", ("RssAnon",)) or {"RssAnon": 0}
            private += max(0, anonymous["RssAnon"] - self._inherited.get(pid, usual))
        in_flight = _open_shared_bytes([self._main, *others], self._proc) - own["RssShmem"]
        return TreeMemory(own["VmRSS"], private + max(0, in_flight), len(others))

    def _walk(self) -> None:
        """Go on with the round for about `WALK_S`."""
        began_s = time.thread_time()  # on a busy machine the wall clock would count others' turns
        until = time.monotonic() + WALK_S
        while self._waiting:
            pid = self._waiting.pop()
            found = _fields(
                self._proc / str(pid) / "smaps_rollup", ("Anonymous", "Private_Clean", "Private_Dirty", "Pss_Shmem")
            )
            if found is not None:
                # Shared memory that one process alone has mapped is called private, too.
                private = max(0, found["Private_Clean"] + found["Private_Dirty"] - found["Pss_Shmem"])
                self._found[pid] = max(0, found["Anonymous"] - private)
            if time.monotonic() >= until:
                break
        self._walked_s += time.thread_time() - began_s
        if not self._waiting:
            self._inherited = self._found
            self._next_walk = time.monotonic() + self._walked_s / DUTY_FRACTION


class HostMemoryWatch:
    """Looks at a trial's tree now and then; the caller says when it may."""

    def __init__(self) -> None:
        self._reader: TreeReader | None = None
        self._of: tuple[int, int] | None = None
        self._others_peak_bytes = 0
        self._tree_peak_bytes = 0
        self._next = 0.0

    def look(self, root: int, main: int) -> TreeMemory | None:
        """Take a reading if one is due; None where none was, or the tree is gone."""
        if time.monotonic() < self._next:
            return None
        if self._reader is None or self._of != (root, main):
            self._reader, self._of = TreeReader(root, main), (root, main)
        tree = self._reader.read()
        self._next = time.monotonic() + (0.0 if self._reader.is_in_first_round else INTERVAL_S)
        if tree is not None:
            self.take(tree)
        return tree

    def take(self, tree: TreeMemory) -> None:
        """Add one reading to the peaks."""
        self._others_peak_bytes = max(self._others_peak_bytes, tree.others_bytes)
        self._tree_peak_bytes = max(self._tree_peak_bytes, tree.total_bytes)

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
