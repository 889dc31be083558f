"""Text that is safe to show: what users name their things stays data, and fits its columns."""

from __future__ import annotations

import signal
import unicodedata


def printable(text: str) -> str:
    """The text on one line, with control characters replaced."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\t\n\r" else "\ufffd" for c in text)


def last_line(output: bytes, most: int = 200) -> str:
    """The last line of a program's output that is not blank, at most `most` characters of it; "" without one."""
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return printable(lines[-1].strip())[:most] if lines else ""


def signal_text(number: int) -> str:
    """ "SIGKILL"; "signal 40" for one that is valid and has no name, as real-time signals are."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def display_width(text: str) -> int:
    """Terminal columns that a text takes: wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
