"""Append to a study: one journal per writer, whole lines, on disk before the next trial starts."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gputune_tui import __version__
from gputune_tui.errors import StoreWriteError, StudyError
from gputune_tui.store.journal import JOURNAL_PATTERN
from gputune_tui.store.records import Record, WriterStarted, encode_record, this_process

CLAIM_TRIES = 10_000
TRIES_WHILE_DELETED = 5
GONE = (errno.ENOENT, errno.ESTALE)
"""The file or its directory was deleted, by a process of this machine or (ESTALE) on the NFS server."""
_ADVICE = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some of your quota there",
    errno.EFBIG: "raise the file size limit (ulimit -f)",
    errno.EROFS: "the file system is read-only",
    errno.EIO: "the disk or its server has a fault",
    errno.ENOTDIR: "a file is in the way",
    errno.EEXIST: "a file is in the way",
    errno.EACCES: "see who may write there",
    errno.EPERM: "see who may write there",
}


class StudyWriter:
    """The journal of this process in a study; created with its first record.

    No lock is taken, since homes on NFS break them: a writer never touches another one's file. If somebody deletes
    the study, the next record brings back all that this process knows of it.
    """

    def __init__(self, study: Path, known: Iterable[Record] = ()) -> None:
        """`known` is what was in the study when it was read (`StudyContents.records`)."""
        self._study = study
        self._known = b"".join(map(encode_record, known))
        self._started: bytes | None = None
        """The line that names this writer."""
        self._own: list[bytes] = []
        """The lines of this writer that are on disk."""
        self._pending: list[bytes] = []
        self._fd: int | None = None
        self._size_bytes = 0
        """Length of the whole lines in the file; anything beyond is a torn line."""
        self._was_created = False
        self._host, self._pid, self._pid_started = this_process()
        self.path = self._new_path()
        """The journal; another one after the study was deleted."""

    def append(self, record: Record) -> None:
        """Write one record and bring it to the disk; what could not be written before goes first.

        Raises:
            StoreWriteError: it is not on disk; it is kept and tried again with the next one.
        """
        self._pending.append(encode_record(record))
        self.flush()

    def flush(self) -> None:
        """Write what is pending.

        Raises:
            StoreWriteError: something still is.
        """
        for left in reversed(range(TRIES_WHILE_DELETED)):
            try:
                return self._write_pending()
            except OSError as error:
                if left == 0 or error.errno not in GONE:
                    raise StoreWriteError(self._words(error)) from error
                self._close_file()  # whoever deletes the study may still be at it: it is written anew

    @property
    def unsaved(self) -> int:
        """Records that are in memory alone."""
        return len(self._pending)

    def claim_trial_id(self, first: int) -> tuple[int, Path]:
        """The next free trial id from `first` and its new directory; making a directory is atomic, on NFS too.

        Raises:
            StoreWriteError: the directory cannot be made.
            StudyError: ten thousand ids in a row are in use.
        """
        for trial_id in range(first, first + CLAIM_TRIES):
            directory = self.directory_of(trial_id)
            try:
                directory.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise StoreWriteError(self._words(error)) from error
            return trial_id, directory
        raise StudyError(f"{self._study} holds too many trials; choose another --study")

    def directory_of(self, trial_id: int) -> Path:
        """Where the logs of a trial lie."""
        return self._study / "trials" / str(trial_id)

    def close(self) -> None:
        """Try once more to write what is pending, and close the file. Raises nothing."""
        with suppress(StoreWriteError):  # `append` has raised for each of these records
            if self._pending:
                self.flush()
        self._close_file()

    def _close_file(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with suppress(OSError):  # all lines were synced: nothing is lost with the descriptor
                os.close(fd)

    def _new_path(self) -> Path:
        safe_host = "".join(c if c.isalnum() or c in "._-" else "_" for c in self._host)
        return self._study / f"journal-{safe_host}-{self._pid}-{secrets.token_hex(3)}.jsonl"

    def _write_pending(self) -> None:
        if self._fd is None or not self._is_still_there():
            self._open()
        while self._pending:
            self._write(self._pending[0])
            self._own.append(self._pending.pop(0))

    def _is_still_there(self) -> bool:
        assert self._fd is not None
        with suppress(OSError):
            mine, there = os.fstat(self._fd), os.stat(self.path)
            return (mine.st_ino, mine.st_dev) == (there.st_ino, there.st_dev)
        return False

    def _open(self) -> None:
        """Create a journal; where the study was deleted meanwhile, with everything this process knows."""
        is_new = not self._was_created and any(self._study.glob(JOURNAL_PATTERN))
        known = b"" if is_new else self._known
        self._close_file()
        self._study.mkdir(parents=True, exist_ok=True)
        self.path = self._new_path()  # a failed attempt may have left its file
        if self._started is None:
            started = WriterStarted(self._host, self._pid, self._pid_started, __version__, time.time())
            self._started = encode_record(started)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o644)
        self._size_bytes = 0
        try:
            self._write(b"".join([known, self._started, *self._own]))
            for folder in (self._study, self._study.parent):
                _sync_folder(folder)
        except OSError:
            self._close_file()
            with suppress(OSError):
                self.path.unlink()
            raise
        self._was_created = True

    def _write(self, data: bytes) -> None:
        """All of `data` or nothing: a torn line is cut off again, so that none is ever followed by another."""
        assert self._fd is not None
        if os.fstat(self._fd).st_size != self._size_bytes:
            os.ftruncate(self._fd, self._size_bytes)  # what the cut below did not manage before
        try:
            rest = data
            while rest:
                written = os.write(self._fd, rest)
                if written == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                rest = rest[written:]
            os.fsync(self._fd)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size_bytes)
            raise
        self._size_bytes += len(data)

    def _words(self, error: OSError) -> str:
        reason = error.strerror or str(error)
        records = "1 record is" if self.unsaved == 1 else f"{self.unsaved} records are"
        kept = f"; {records} kept in memory and written when that is possible" if self.unsaved else ""
        advice = _ADVICE.get(error.errno or 0)
        return (
            f"cannot write to study {self._study}: {reason}{kept}; "
            f"{advice + ', or choose another --study' if advice else 'choose another --study'}"
        )


def _sync_folder(folder: Path) -> None:
    """Bring a directory's entries to the disk, where the file system can."""
    with suppress(OSError):  # some network and user-space file systems cannot sync a directory
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
