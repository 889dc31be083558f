"""What any program on a terminal needs: its look, and an end for every way in which a terminal can go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from textual._compositor import ChopsUpdate
from textual.app import App
from textual.binding import BindingType
from textual.geometry import Region
from textual.screen import Screen
from textual.widget import Widget

from gputune_tui.tui.driver import AsciiDriver, PatientDriver
from gputune_tui.tui.terminal import Look, end_on_signals, is_gone
from gputune_tui.tui.thrift import Brush, ThriftyUpdate

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
        self._brush = Brush(self, self._write)

    @property
    def is_stuck(self) -> bool:
        """Whether the terminal did not take the last of the output."""
        return isinstance(self._driver, PatientDriver) and self._driver.stuck

    @property
    def failure(self) -> Exception | None:
        """The bug that ended the program, if one did."""
        return self._exception

    def _print_error_renderables(self) -> None:
        # Textual would print the traceback: whoever ran the program tells of the failure in one sentence.
        self._exit_renderables.clear()

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

    def paint(self, widget: Widget, regions: Sequence[Region]) -> bool:
        """Draw regions of a widget's content at once; False if it has to be refreshed instead."""
        return self._brush.paint(widget, regions)

    def _write(self, text: str) -> None:
        if self._driver is None or self._closed:
            return
        self._begin_update()
        self._driver.write(text)
        self._end_update()
        self._driver.flush()

    def _display(self, screen: Screen[Any], renderable: Any) -> None:
        self._brush.flush()
        super()._display(screen, ThriftyUpdate(renderable) if isinstance(renderable, ChopsUpdate) else renderable)

    def _end(self, code: int) -> None:
        self.exit(code, return_code=code)

    def _look_for_terminal(self) -> None:
        if is_gone():
            self._end(HANGUP_CODE)
        if isinstance(self._driver, PatientDriver) and self._driver.missed:
            self._driver.missed = False
            self.refresh()
