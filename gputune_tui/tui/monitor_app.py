"""The program of `gputune-tui monitor`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from textual.app import SystemCommand
from textual.screen import Screen

from gputune_tui.telemetry.collector import Collector
from gputune_tui.telemetry.recording import Recorder
from gputune_tui.tui.actions import ACTIONS
from gputune_tui.tui.base_app import TerminalApp
from gputune_tui.tui.glyphs import ASCII, UNICODE
from gputune_tui.tui.screens.monitor_screen import MonitorScreen
from gputune_tui.tui.terminal import Look


@dataclass(frozen=True)
class MonitorOptions:
    """What the command line says about the screen."""

    mouse: bool = True
    is_readonly: bool = False
    interval_s: float = 1.0


class MonitorApp(TerminalApp):
    """Panels over one sampling process, which whoever made it closes."""

    def __init__(
        self, collector: Collector, recorder: Recorder | None, appearance: Look, options: MonitorOptions
    ) -> None:
        super().__init__(appearance)
        glyphs = ASCII if appearance.ascii else UNICODE
        self.main = MonitorScreen(collector, recorder, glyphs, options.interval_s, options.is_readonly)

    def get_default_screen(self) -> Screen[None]:
        """The screen to begin with."""
        return self.main

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette holds the table of keys."""
        for action in ACTIONS:
            if action.pane in ("", "node"):
                yield SystemCommand(action.label, action.help, lambda name=action.name: self._run_by_name(name))

    async def _run_by_name(self, name: str) -> None:
        await self.main.run_action(name)


def run_monitor(collector: Collector, recorder: Recorder | None, appearance: Look, options: MonitorOptions) -> int:
    """Show the panels until they are left. Returns the exit code."""
    app = MonitorApp(collector, recorder, appearance, options)
    app.run(mouse=options.mouse)
    if app.is_stuck:
        collector.close()
        # The thread that writes holds the lock which the interpreter would take at its end.
        os._exit(app.return_code or 0)
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0
