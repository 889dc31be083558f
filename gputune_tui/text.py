"""Text that is safe to show: what users name their things stays data, and fits its columns."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """The text on one line, with control characters replaced."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c in "\t\n\r" else "\ufffd" for c in text)


def display_width(text: str) -> int:
    """Terminal columns that a text takes: wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
