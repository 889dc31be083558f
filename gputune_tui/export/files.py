"""Write a file whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from gputune_tui.errors import EnvironmentProblem, GputuneError, UsageError

_ANOTHER_PLACE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EROFS,
        errno.EINVAL,
    }
)
"""Errors of the place that was asked for; all others (disk full, I/O error) are this machine's."""


def write_atomically(path: Path, text: str, force: bool) -> None:
    """Put `text` (UTF-8) at `path`: a reader sees the old file or the new one, and a failure leaves no trace.

    A symbolic link is followed, so that the link stays; an existing file keeps its mode. A device or a pipe, such as
    /dev/stdout, cannot be replaced and is written to.

    Raises:
        UsageError: the file exists and `force` is off, or `path` cannot name a file.
        EnvironmentProblem: the disk is full or fails.
    """
    # Text that came from file names may hold lone surrogates; in JSON and YAML strings the escape means the same.
    data = text.encode("utf-8", errors="backslashreplace")
    try:
        found = _stat(path)
        if found is None or stat.S_ISREG(found.st_mode):
            if found is not None and not force:
                raise UsageError(f"{path} exists; use --force to replace it, or choose another name")
            _replace(Path(os.path.realpath(path)), data, None if found is None else stat.S_IMODE(found.st_mode))
        elif stat.S_ISDIR(found.st_mode):
            raise UsageError(f"{path} is a directory; give the name of a file")
        else:
            with open(path, "wb") as stream:
                stream.write(data)
    except ValueError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error}; choose another name") from None
    except OSError as error:
        raise _in_words(path, error) from error


def _stat(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    temporary = target.parent / f".gputune-{os.getpid()}-{secrets.token_hex(4)}.tmp"
    try:
        # Mode 0666 less the umask, as any other program would create the file.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with open(descriptor, "wb") as stream:
            if mode is not None:
                os.fchmod(descriptor, mode)
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    """Make the new name last through a power cut, where the file system offers it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _in_words(path: Path, error: OSError) -> GputuneError:
    if error.errno == errno.ENOENT and not os.path.isdir(path.parent):
        return UsageError(
            f"cannot write {path}: there is no directory {path.parent}; create it or choose another place"
        )
    reason = (error.strerror or str(error)).lower()
    if error.errno in _ANOTHER_PLACE:
        return UsageError(f"cannot write {path}: {reason}; choose another place")
    return EnvironmentProblem(f"cannot write {path}: {reason}; free some space or choose another place")
