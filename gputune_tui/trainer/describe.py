"""A user's exception in one sentence: its type, its text, and the place in their own files."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

OWN_PACKAGE = f"{Path(__file__).resolve().parent.parent}/"
MAX_CHARACTERS = 300
_WORKER = re.compile(r"Caught (?P<type>\w+) in DataLoader worker process \d+\.\nOriginal Traceback.*", re.DOTALL)
_TRACEBACK = re.compile(r"^Traceback \(most recent call last\):\n|^Original Traceback .*\n", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "(?P<path>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$', re.MULTILINE)


def describe_exception(error: BaseException) -> str:
    """ "ValueError: bad label (train.py:12 in __getitem__)"; what torch wrapped for a worker is unwrapped."""
    sent = _sent_by_worker(error)
    if sent is not None:
        return _from_worker(sent)
    text = _text(error)
    if isinstance(error, SyntaxError) and error.filename:
        return _one_line(f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}:{error.lineno})")
    where = place_of(error)
    named = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return _one_line(named, where)


def place_of(error: BaseException) -> str | None:
    """file:line and function of the deepest frame in the user's own files; None where none of them took part.

    What an exception was raised from is looked at too: of a generator that let out a StopIteration only that tells.
    """
    cause: BaseException | None = error
    while cause is not None:
        frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(cause.__traceback__)]
        if (found := _deepest(frames)) is not None:
            return found
        cause = cause.__cause__
    return None


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


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a user's __str__ may raise anything; the type's name must do
        return ""


def _sent_by_worker(error: BaseException) -> re.Match[str] | None:
    """The traceback that torch passed to the exception's constructor, which may have done anything with it."""
    attributes = getattr(error, "__dict__", {}).values()
    for candidate in (_text(error), *error.args, *attributes):
        found = _WORKER.search(candidate) if isinstance(candidate, str) else None
        if found:
            return found
    return None


def _from_worker(sent: re.Match[str]) -> str:
    """The user's exception out of the traceback that a loader worker sent: what follows the last one's frames."""
    text = sent[0]
    frames = [(m["path"], int(m["line"]), m["function"] or "?") for m in _FRAME.finditer(text)]
    last = list(_TRACEBACK.finditer(text))[-1].end()
    lines = text[last:].splitlines()
    start = next((i for i, line in enumerate(lines) if line and not line[0].isspace()), 0)
    named = " ".join(lines[start:])
    # Python puts the module's name before the type's; the one that we gave a workload file says nothing to its author.
    header = re.search(rf"(?:^|\.)(?P<name>{re.escape(sent['type'])}(?:: |$| ).*)", named)
    return _one_line(header["name"] if header else named, _deepest(frames))


def _one_line(text: str, where: str | None = None) -> str:
    flat = " ".join(text.split())
    if len(flat) > MAX_CHARACTERS:
        flat = flat[: MAX_CHARACTERS - 3] + "..."
    return f"{flat} ({where})" if where else flat
