"""How warm the data is: bytes from disk during timed blocks, and the page cache of the files that were read."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from gputune_tui.domain.data_reads import DataReads
from gputune_tui.domain.job import Job
from gputune_tui.trainer.opened_files import DataFile, OpenedFiles, own_children

DROP_S = 20.0
"""Files on a slow server are not dropped for longer than this before a block."""


class DataWatch:
    """Counts what the timed blocks read from disk; drops the page cache before each where the job asks for it.

    Reading the counters takes about 20 µs a process, outside the timed part of a block.
    """

    def __init__(self, job: Job, beat: Callable[[], None] = lambda: None) -> None:
        self.files = OpenedFiles(job.workload.options.values())
        self._job = job
        self._beat = beat
        self._begun_bytes: int | None = None
        self._disk_bytes: int | None = 0
        self._samples = 0
        self._synced: set[str] = set()

    def drop_page_cache(self) -> bool:
        """Drop what the kernel holds of the data's files, where that is asked for; True where it is."""
        if not self._job.cold:
            return False
        deadline = time.perf_counter() + DROP_S
        files = self.files.data_files()
        with self.files.not_data():
            for path in files:
                if time.perf_counter() > deadline:
                    break
                drop(path, sync=path not in self._synced)
                self._synced.add(path)
                self._beat()
        return True

    def begin(self) -> None:
        """A timed block begins."""
        self._begun_bytes = disk_bytes()

    def end(self, samples: int) -> None:
        """A timed block of so many samples has ended."""
        now = disk_bytes()
        self._samples += samples
        if now is None or self._begun_bytes is None or self._disk_bytes is None:
            self._disk_bytes = None
        else:
            self._disk_bytes += max(0, now - self._begun_bytes)
        self.files.drain()

    def record(self, dataset_samples: int | None) -> DataReads | None:
        """What was read so far; looks at the data's files, so it belongs after everything that is measured.

        None where that fails: the trial has all that counts by then, and it may have removed its files or its folder.
        """
        try:
            return self._record(dataset_samples)
        except Exception as error:
            traceback.print_exception(type(error), error, error.__traceback__)
            return None

    def _record(self, dataset_samples: int | None) -> DataReads:
        files = self.files.data_files()
        data_bytes = sum(file.size_bytes for file in files.values()) if files else None
        if data_bytes and not self.files.is_complete and (dataset_samples or 0) > len(files):
            data_bytes = data_bytes * (dataset_samples or 0) // len(files)  # so many look like a file for each sample
        return DataReads(
            samples=self._samples,
            disk_bytes=self._disk_bytes,
            files=len(files),
            data_bytes=data_bytes,
            dataset_samples=dataset_samples,
            host_memory_bytes=self._job.host_memory_bytes,
            cold=self._job.cold,
            file_systems=file_systems(files),
        )


def disk_bytes(proc: Path = Path("/proc")) -> int | None:
    """Bytes read from storage so far by this process and its children; None where the kernel does not count them.

    The kernel adds those of a child that ended to the process that waited for it.
    """
    own = _read_bytes(proc / "self")
    if own is None:
        return None
    return own + sum(_read_bytes(proc / str(pid)) or 0 for pid in own_children())


def _read_bytes(process: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in (process / "io").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "read_bytes":
                return int(value)
    return None


def drop(path: str, sync: bool = False) -> None:
    """Ask the kernel to forget a file's pages; those that are mapped or not yet written stay.

    `sync` writes them first: a data set that was just made is otherwise not dropped. What cannot be opened stays.
    """
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if sync:
                os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def file_systems(files: dict[str, DataFile], mounts: Path = Path("/proc/self/mountinfo")) -> tuple[str, ...]:
    """Types of the file systems that the files are on, sorted; one file of each device is looked up."""
    points: list[tuple[str, str]] = []
    with contextlib.suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").split("\n"):
            before, _, after = line.partition(" - ")
            if len(words := before.split()) > 4 and after.split():
                points.append((words[4].replace("\\040", " ").rstrip("/") + "/", after.split()[0]))
    found: set[str] = set()
    for path in {file.device: path for path, file in files.items()}.values():
        real = os.path.realpath(path)
        # Of two mounts on one point the later hides the earlier.
        fitting = [(len(point), number, kind) for number, (point, kind) in enumerate(points) if real.startswith(point)]
        if fitting:
            found.add(max(fitting)[2])
    return tuple(sorted(found))
