"""What the terminal can do, and its end: signals and a line that is gone end the program in order."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gputune_tui.errors import EnvironmentProblem

SIXTEEN_COLOURS = ("xterm", "linux", "screen", "vt100", "vt220", "ansi", "rxvt")
"""TERM values for which textual's RGB themes come out as bright black on black (measured: style.md section 3)."""
HEADLESS = "use the headless commands instead: gputune-tui tune, trial, ab (gputune-tui --help lists them)"
GONE_SIGNALS = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
LAST_RESORT_S = 5.0
"""A terminal that takes no more output can hold the program up at its end; after this long it ends without."""


@dataclass(frozen=True)
class Look:
    """How to draw here."""

    ansi: bool
    """Only the terminal's own colours."""
    ascii: bool


def look(environment: Mapping[str, str], ascii_only: bool) -> Look:
    """What suits the terminal.

    Raises:
        EnvironmentProblem: there is no terminal, or one that cannot place a cursor.
    """
    # Keys come from the first, the size from the second, and textual draws on the third.
    for name, stream in (("input", sys.stdin), ("output", sys.stdout), ("error", sys.stderr)):
        if not stream.isatty():
            raise EnvironmentProblem(f"the screen needs a terminal, and standard {name} is none; {HEADLESS}")
    term = environment.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        raise EnvironmentProblem(f"TERM={term or '(not set)'} cannot place a cursor; {HEADLESS}")
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    # In these locales Python turns to UTF-8 by itself, whatever the terminal can show.
    ascii_locale = sys.flags.utf8_mode and (environment.get("LC_ALL") or environment.get("LANG")) in ("C", "POSIX")
    plain = bool(environment.get("NO_COLOR"))
    draws_ascii = ascii_only or encoding != "utf8" or bool(ascii_locale) or term == "linux"
    return Look(ansi=plain or term in SIXTEEN_COLOURS, ascii=draws_ascii)


def end_on_signals(loop: asyncio.AbstractEventLoop, end: Callable[[int], None]) -> None:
    """Call `end` with the exit code when a signal asks the program to end; a second one ends it at once."""
    asked: list[int] = []

    def take(number: int) -> None:
        if asked:
            os._exit(128 + number)
        asked.append(number)
        loop.call_later(LAST_RESORT_S, os._exit, 128 + number)
        end(128 + number)

    for number in GONE_SIGNALS:
        loop.add_signal_handler(number, take, number)


def is_gone(fd: int = 0) -> bool:
    """Whether the terminal hung up: nobody will read or type any more."""
    watch = select.poll()
    watch.register(fd, 0)
    return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in watch.poll(0))
