"""Drive the engine from the command line: show what it says, and end it in order when a signal comes."""

from __future__ import annotations

import os
import signal
import types
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from gputune_tui.cli.progress import ProgressPrinter
from gputune_tui.engine.commands import Command, StudyConfig
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import EngineEvent
from gputune_tui.errors import GputuneError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(GputuneError):
    """A signal ended the work."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + number  # type: ignore[assignment]  # 129, 130 and 143 are no members of the enum


class SignalFlag:
    """Notes the first signal; a second one ends the process at once (the keeper then ends the trial)."""

    def __init__(self) -> None:
        self.number: int | None = None

    def take(self, number: int, _frame: types.FrameType | None) -> None:
        """The handler."""
        if self.number is not None:
            os._exit(128 + number)
        self.number = number


@contextmanager
def signals_noted() -> Iterator[SignalFlag]:
    """Note INT, TERM and HUP instead of dying by them."""
    flag = SignalFlag()
    before = {number: signal.signal(number, flag.take) for number in SIGNALS}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


Listener = Callable[[EngineEvent], None]


def drive(
    engine: Engine,
    config: StudyConfig,
    commands: list[Command],
    printer: ProgressPrinter,
    listen: Listener | None = None,
) -> None:
    """Open the study and carry out the commands; the engine's session holds the results, whatever ends it.

    Raises:
        Interrupted: a signal came; what ran is ended and stored.
        GputuneError: see `Engine.open`.
    """
    with signals_noted() as flag:
        try:
            _follow(engine, engine.open(config), printer, flag, listen)
            for command in commands:
                _follow(engine, engine.handle(command), printer, flag, listen)
        finally:
            printer.clear()
            engine.close()


def _follow(
    engine: Engine,
    task: Generator[EngineEvent | None, None, None],
    printer: ProgressPrinter,
    flag: SignalFlag,
    listen: Listener | None,
) -> None:
    try:
        for event in task:
            if event is not None:
                printer.show(event)
                if listen is not None:
                    listen(event)
            if flag.number is not None:
                printer.clear()
                raise Interrupted(flag.number, _interrupted_words(engine, flag.number))
    finally:
        task.close()


def _interrupted_words(engine: Engine, number: int) -> str:
    name = signal.Signals(number).name
    if not engine.is_open:
        return f"interrupted ({name})"
    return f"interrupted ({name}); results so far are kept in {engine.session.path}, and the same command goes on there"
