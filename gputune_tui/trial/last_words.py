"""The end of a trial's log, for display: never for a decision."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gputune_tui.text import last_line

TAIL_BYTES = 1 << 16
CHARACTERS = 200
_WHAT = re.compile(rb"^ *what\(\): *(.+)$", re.MULTILINE)
"""Where the C++ runtime says why it ends a process; a stack follows, and then others who die of the first."""


def last_words(log: Path) -> str:
    """The last line that is not blank, or what an uncaught C++ exception says; "" where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            tail = file.read()
    except OSError:
        return ""
    said = _WHAT.findall(tail)
    return last_line(said[0] if said else tail, CHARACTERS)
