"""A user's exception in one sentence: its type, its text, and the place in their own files."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

OWN_PACKAGE = str(Path(__file__).resolve().parent.parent)
MAX_CHARACTERS = 300
_WORKER = re.compile(r"^Caught \w+ in DataLoader worker process \d+\.\nOriginal Traceback", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "(?P<path>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$', re.MULTILINE)


def describe_exception(error: BaseException) -> str:
    """ "ValueError: bad label (train.py:12 in __getitem__)"; what torch wrapped for a worker is unwrapped."""
    text = str(error)
    if _WORKER.search(text):
        return _from_worker(text)
    if isinstance(error, SyntaxError) and error.filename:
        return _one_line(f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}:{error.lineno})")
    where = place_of(error)
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return _one_line(named, where)


def place_of(error: BaseException) -> str | None:
    """file:line and function of the deepest frame in the user's own files; None where none of them took part."""
    frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    return _deepest(frames)


def is_users_file(path: str) -> bool:
    """True for files that are neither ours, nor installed packages, nor the standard library."""
    if path.startswith((OWN_PACKAGE, "<")):
        return "/workloads/" in path
    return "site-packages" not in path and "dist-packages" not in path and not re.search(r"/lib/python3[.\d]*/", path)


def _deepest(frames: list[tuple[str, int, str]]) -> str | None:
    for path, line, function in reversed(frames):
        if is_users_file(path):
            return f"{Path(path).name}:{line} in {function}"
    return None


def _from_worker(text: str) -> str:
    """The user's exception out of the traceback that a loader worker sent; the last unindented line names it."""
    frames = [(m["path"], int(m["line"]), m["function"] or "?") for m in _FRAME.finditer(text)]
    lines = [line for line in text.splitlines() if line.strip()]
    starts = [i for i, line in enumerate(lines) if re.match(r"^[\w.]+(?:: |$)", line)]
    named = " ".join(lines[starts[-1] :]) if starts else lines[-1]
    return _one_line(named.strip(), _deepest(frames))


def _one_line(text: str, where: str | None = None) -> str:
    flat = " ".join(text.split())
    if len(flat) > MAX_CHARACTERS:
        flat = flat[: MAX_CHARACTERS - 3] + "..."
    return f"{flat} ({where})" if where else flat
