"""Append to a study: one journal per writer, whole lines, on disk before the next trial starts."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gputune_tui import __version__
from gputune_tui.errors import StoreWriteError, StudyError
from gputune_tui.store.records import Record, WriterStarted, encode_record, this_process

CLAIM_TRIES = 10_000


class StudyWriter:
    """The journal of this process in a study; created with its first record.

    No lock is taken, since homes on NFS break them: a writer never touches another one's file.
    """

    def __init__(self, study: Path, known: Iterable[Record] = ()) -> None:
        self._study = study
        self._known = list(known)
        """What was in the study when it was opened: written anew if somebody deletes the directory."""
        self._own: list[Record] = []
        self._pending: list[Record] = []
        self._fd: int | None = None
        safe_host = "".join(c if c.isalnum() or c in "._-" else "_" for c in socket.gethostname())
        self.path = study / f"journal-{safe_host}-{os.getpid()}-{secrets.token_hex(3)}.jsonl"

    def append(self, record: Record) -> None:
        """Write one record and bring it to the disk; what could not be written before goes first.

        Raises:
            StoreWriteError: it is not on disk; it is kept and tried again with the next one.
        """
        self._pending.append(record)
        self.flush()

    def flush(self) -> None:
        """Write what is pending.

        Raises:
            StoreWriteError: something still is.
        """
        try:
            if self._fd is None or not self._is_still_there():
                self._open()
            while self._pending:
                self._write(encode_record(self._pending[0]))
                self._own.append(self._pending.pop(0))
        except OSError as error:
            raise StoreWriteError(self._words(error)) from error

    @property
    def unsaved(self) -> int:
        """Records that are in memory alone."""
        return len(self._pending)

    def claim_trial_id(self, first: int) -> tuple[int, Path]:
        """The next free trial id and its new directory; making a directory is atomic, on NFS too.

        Raises:
            StoreWriteError: the directory cannot be made.
        """
        for trial_id in range(first, first + CLAIM_TRIES):
            directory = self._study / "trials" / str(trial_id)
            try:
                directory.parent.mkdir(parents=True, exist_ok=True)
                directory.mkdir()
            except FileExistsError:
                continue
            except OSError as error:
                raise StoreWriteError(self._words(error)) from error
            return trial_id, directory
        raise StudyError(f"{self._study / 'trials'} holds too many trials")

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _is_still_there(self) -> bool:
        assert self._fd is not None
        with suppress(OSError):
            mine, there = os.fstat(self._fd), os.stat(self.path)
            return (mine.st_ino, mine.st_dev) == (there.st_ino, there.st_dev)
        return False

    def _open(self) -> None:
        """Create the journal; where the study was deleted meanwhile, with everything this process knows."""
        again = self._fd is not None
        self.close()
        self._study.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        host, pid, started = this_process()
        records: list[Record] = [WriterStarted(host, pid, started, __version__, time.time())]
        if again:
            records += [r for r in [*self._known, *self._own] if not isinstance(r, WriterStarted)]
        try:
            self._write(b"".join(map(encode_record, records)))
        except OSError:
            self.close()
            raise
        folder = os.open(self._study, os.O_RDONLY)
        try:
            with suppress(OSError):  # not every file system can sync a directory
                os.fsync(folder)
        finally:
            os.close(folder)

    def _write(self, data: bytes) -> None:
        """All of `data` or nothing: a torn line is cut off again, so that none is ever followed by another."""
        assert self._fd is not None
        before = os.fstat(self._fd).st_size
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
                os.ftruncate(self._fd, before)
            raise

    def _words(self, error: OSError) -> str:
        reason = error.strerror or str(error)
        kept = f"; {self.unsaved} records are kept in memory" if self.unsaved else ""
        return f"cannot write to study {self._study}: {reason}{kept}; free some space or choose another --study"
