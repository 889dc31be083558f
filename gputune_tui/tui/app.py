"""The program of the screen: its look, its end, and the one screen that it shows."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.screen import Screen

from gputune_tui.engine.client import EngineClient
from gputune_tui.engine.commands import Search, StudyConfig
from gputune_tui.telemetry.collector import Collector
from gputune_tui.tui.actions import ACTIONS
from gputune_tui.tui.bridge import Bridge
from gputune_tui.tui.driver import AsciiDriver, PatientDriver
from gputune_tui.tui.glyphs import ASCII, UNICODE
from gputune_tui.tui.screens.main_screen import MainScreen
from gputune_tui.tui.terminal import Look, end_on_signals, is_gone, look

GONE_CHECK_S = 2.0
HANGUP_CODE = 129


@dataclass(frozen=True)
class ScreenOptions:
    """What the command line says about the screen alone."""

    ascii: bool = False
    mouse: bool = True
    low_bandwidth: bool = False
    interval_s: float = 1.0


class GputuneApp(App[int]):
    """One screen over one bridge."""

    CSS_PATH = "app.tcss"
    TITLE = "gputune-tui"
    BINDINGS: ClassVar[list[BindingType]] = []
    ENABLE_COMMAND_PALETTE = True

    def __init__(self, bridge: Bridge, config: StudyConfig | None, search: Search, appearance: Look) -> None:
        # Without colours textual sends greys in true colour unless told so at its start.
        driver = AsciiDriver if appearance.ascii else PatientDriver
        super().__init__(driver_class=driver, ansi_color=appearance.ansi)
        if appearance.ansi:
            self.theme = "ansi-dark"
        self.animation_level = "none"
        self.bridge = bridge
        self._ascii = appearance.ascii
        self._main = MainScreen(bridge, config, search, ASCII if appearance.ascii else UNICODE)

    @property
    def study_path(self) -> str | None:
        """The study that is open, or was at the end."""
        opened = self._main.tune.state.opened
        return None if opened is None else opened.path

    @property
    def is_busy(self) -> bool:
        """Whether something ran at the end."""
        return self._main.tune.state.task is not None

    @property
    def is_stuck(self) -> bool:
        """Whether the terminal did not take the last of the output."""
        return isinstance(self._driver, PatientDriver) and self._driver.stuck

    def get_default_screen(self) -> Screen[None]:
        """The screen to begin with."""
        return self._main

    def on_mount(self) -> None:
        """Listen for what may end the program."""
        if not self.is_headless:
            end_on_signals(asyncio.get_running_loop(), self._end)
            self.set_interval(GONE_CHECK_S, self._look_for_terminal)

    def push_screen(self, screen: Any, *arguments: Any, **options: Any) -> Any:
        """As textual does; dialogs are drawn in the characters of the main screen."""
        if isinstance(screen, Screen):
            screen.set_class(self._ascii, "-ascii")
        return super().push_screen(screen, *arguments, **options)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette holds the table of keys."""
        for action in ACTIONS:
            yield SystemCommand(action.label, action.help, lambda name=action.name: self._run_by_name(name))

    async def _run_by_name(self, name: str) -> None:
        await self._main.run_action(name)

    def _end(self, code: int) -> None:
        self.exit(code, return_code=code)

    def _look_for_terminal(self) -> None:
        if is_gone():
            self._end(HANGUP_CODE)
        if isinstance(self._driver, PatientDriver) and self._driver.missed:
            self._driver.missed = False
            self.refresh()


def run_screen(config: StudyConfig | None, search: Search, options: ScreenOptions) -> int:
    """Show the screen until it is left; then end what still runs. Returns the exit code.

    Raises:
        EnvironmentProblem: no terminal that it could be shown on.
    """
    appearance = look(os.environ, options.ascii)
    if options.low_bandwidth:
        os.environ.setdefault("TEXTUAL_FPS", "10")
    interval_s = max(options.interval_s, 2.0) if options.low_bandwidth else options.interval_s
    bridge = Bridge(EngineClient(), Collector(interval_s=interval_s))
    app = GputuneApp(bridge, config, search, appearance)
    try:
        app.run(mouse=options.mouse)
    finally:
        if app.is_busy and not app.is_stuck:
            _tell("ending what runs")
        bridge.close()
        if app.is_stuck:
            # The thread that writes holds the lock which the interpreter would take at its end.
            os._exit(app.return_code or 0)
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
