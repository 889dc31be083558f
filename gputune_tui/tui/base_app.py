"""What any program on a terminal needs: its look, and an end for every way in which a terminal can go."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from textual._compositor import ChopsUpdate
from textual.app import App
from textual.binding import BindingType
from textual.screen import Screen

from gputune_tui.tui.driver import AsciiDriver, PatientDriver
from gputune_tui.tui.terminal import Look, end_on_signals, is_gone
from gputune_tui.tui.thrift import ThriftyUpdate

GONE_CHECK_S = 2.0
HANGUP_CODE = 129


class TerminalApp(App[int]):
    """One main screen; ends with an exit code."""

    CSS_PATH = "app.tcss"
    TITLE = "gputune-tui"
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, appearance: Look) -> None:
        # Without colours textual sends greys in true colour unless told so at its start.
        driver = AsciiDriver if appearance.ascii else PatientDriver
        super().__init__(driver_class=driver, ansi_color=appearance.ansi)
        if appearance.ansi:
            self.theme = "ansi-dark"
        self.animation_level = "none"
        self._ascii = appearance.ascii

    @property
    def is_stuck(self) -> bool:
        """Whether the terminal did not take the last of the output."""
        return isinstance(self._driver, PatientDriver) and self._driver.stuck

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

    def _display(self, screen: Screen[Any], renderable: Any) -> None:
        super()._display(screen, ThriftyUpdate(renderable) if isinstance(renderable, ChopsUpdate) else renderable)

    def _end(self, code: int) -> None:
        self.exit(code, return_code=code)

    def _look_for_terminal(self) -> None:
        if is_gone():
            self._end(HANGUP_CODE)
        if isinstance(self._driver, PatientDriver) and self._driver.missed:
            self._driver.missed = False
            self.refresh()
