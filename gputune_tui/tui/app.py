"""The program of the screen: its look, its end, and the one screen that it shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.screen import Screen

from gputune_tui.engine.commands import Search, StudyConfig
from gputune_tui.tui.actions import ACTIONS
from gputune_tui.tui.base_app import TerminalApp
from gputune_tui.tui.glyphs import ASCII, UNICODE
from gputune_tui.tui.screens.frame_screen import FrameScreen
from gputune_tui.tui.terminal import Look, look

if TYPE_CHECKING:
    # Half of what there is to import comes after the first picture.
    from gputune_tui.tui.bridge import Bridge
    from gputune_tui.tui.screens.main_screen import MainScreen


@dataclass(frozen=True)
class ScreenOptions:
    """What the command line says about the screen alone."""

    ascii: bool = False
    mouse: bool = True
    low_bandwidth: bool = False
    interval_s: float = 1.0
    is_readonly: bool = False


class GputuneApp(TerminalApp):
    """One screen over one bridge."""

    ENABLE_COMMAND_PALETTE = True

    def __init__(
        self,
        connect: Callable[[], Bridge],
        config: StudyConfig | None,
        search: Search,
        appearance: Look,
        interval_s: float = 1.0,
        is_readonly: bool = False,
        frame_first: bool = False,
    ) -> None:
        """`connect` makes the bridge; with `frame_first` that waits until the frame of the screen is shown."""
        super().__init__(appearance)
        self._connect = connect
        self._config = config
        self._search = search
        self._appearance = appearance
        self._interval_s = interval_s
        self._is_readonly = is_readonly
        self._frame_first = frame_first
        self._main: MainScreen | None = None

    @property
    def main(self) -> MainScreen:
        """The screen, made when it is first asked for."""
        if self._main is None:
            from gputune_tui.tui.screens.main_screen import MainScreen

            glyphs = ASCII if self._appearance.ascii else UNICODE
            bridge = self._connect()
            self._main = MainScreen(bridge, self._config, self._search, glyphs, self._interval_s, self._is_readonly)
        return self._main

    @property
    def study_path(self) -> str | None:
        """The study that is open, or was at the end."""
        opened = self._main.tune.state.opened if self._main is not None else None
        return None if opened is None else opened.path

    @property
    def is_busy(self) -> bool:
        """Whether something ran at the end."""
        return self._main is not None and self._main.tune.state.task is not None

    def get_default_screen(self) -> Screen[None]:
        """The screen to begin with."""
        return FrameScreen(self._fill_frame, self._appearance.ascii) if self._frame_first else self.main

    def _fill_frame(self) -> None:
        self.push_screen(self.main)

    def close(self) -> None:
        """End the processes behind the screen; waits until what runs is ended and stored."""
        if self._main is not None:
            self._main.bridge.close()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette holds the table of keys."""
        for action in ACTIONS:
            yield SystemCommand(action.label, action.help, lambda name=action.name: self._run_by_name(name))

    async def _run_by_name(self, name: str) -> None:
        await self.main.run_action(name)


def run_screen(config: StudyConfig | None, search: Search, options: ScreenOptions) -> int:
    """Show the screen until it is left; then end what still runs. Returns the exit code.

    Raises:
        EnvironmentProblem: no terminal that it could be shown on.
        Exception: a bug ended the screen; the terminal is in order again.
    """
    appearance = look(os.environ, options.ascii)
    interval_s = max(options.interval_s, 2.0) if options.low_bandwidth else options.interval_s

    def connect() -> Bridge:
        from gputune_tui.engine.client import EngineClient
        from gputune_tui.telemetry.collector import Collector
        from gputune_tui.tui.bridge import Bridge

        return Bridge(EngineClient(), Collector(interval_s=interval_s))

    app = GputuneApp(connect, config, search, appearance, interval_s, options.is_readonly, frame_first=True)
    try:
        app.run(mouse=options.mouse)
    finally:
        if app.is_busy and not app.is_stuck:
            _tell("ending what runs")
        app.close()
        if app.is_stuck:
            # The thread that writes holds the lock which the interpreter would take at its end.
            os._exit(app.return_code or 0)
    if app.failure is not None:
        raise app.failure
    study = app.study_path
    if study is not None:
        _tell(f"results are kept in {study}")
    return app.return_code or 0


def _tell(text: str) -> None:
    try:
        sys.stderr.write(f"gputune-tui: {text}\n")
        sys.stderr.flush()
    except OSError:
        pass  # the terminal is gone
