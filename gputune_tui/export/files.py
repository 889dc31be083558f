"""Write a result file whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from gputune_tui.errors import EnvironmentProblem, UsageError


def write_atomically(path: Path, text: str, force: bool = False) -> None:
    """Write UTF-8 text to `path` by way of a temporary file beside it; nothing is left behind on failure.

    Raises:
        UsageError: the file exists and `force` is not given, it is a directory, or its folder does not exist.
        EnvironmentProblem: it cannot be written (disk full, no permission).
    """
    path = path.resolve() if path.is_symlink() else path
    if path.is_dir():
        raise UsageError(f"{path} is a directory; give the name of a file")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; use --force to replace it")
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # a pipe or device such as /dev/stdout cannot be replaced
        return
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: folder {path.parent} does not exist")
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise EnvironmentProblem(
            f"cannot write {path}: {error.strerror}; free some space or choose another place"
        ) from error
