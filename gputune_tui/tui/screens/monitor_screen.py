"""The node's panels alone, on all of the terminal."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.widgets import Footer

from gputune_tui.errors import EnvironmentProblem
from gputune_tui.telemetry.collector import Collector
from gputune_tui.telemetry.recording import Recorder
from gputune_tui.tui import node_lines
from gputune_tui.tui.actions import bindings
from gputune_tui.tui.glyphs import ASCII, Glyphs
from gputune_tui.tui.help_text import help_lines
from gputune_tui.tui.screens.dialogs import ReadDialog
from gputune_tui.tui.screens.node_screen import NodeScreen
from gputune_tui.tui.widgets.lines import LineView, Span

FIRST_TICK_S = 0.02
"""Until the first numbers are there nobody wants to wait."""
TICK_S = 0.5


class MonitorScreen(NodeScreen):
    """Reads the sampling process and shows what it says."""

    BINDINGS: ClassVar[list[BindingType]] = list(bindings("node"))

    def __init__(
        self, collector: Collector, recorder: Recorder | None, glyphs: Glyphs, interval_s: float, is_readonly: bool
    ) -> None:
        super().__init__(collector, glyphs, interval_s, is_readonly)
        self._collector = collector
        self._recorder = recorder
        self._recording_problem: str | None = None
        self._watched: Callable[[], None] | None = None

    def compose(self) -> ComposeResult:
        yield LineView(id="top")
        yield self.node
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Begin with what is there."""
        self.set_class(self._glyphs is ASCII, "-ascii")
        self.show_top()
        self.set_focus(self.node.processes)
        self._first = self.set_interval(FIRST_TICK_S, self._look_first)
        self.call_after_refresh(_collect_garbage_again)

    def on_resize(self) -> None:
        """The first line has another width."""
        self.show_top()

    def _look_first(self) -> None:
        self.look()
        if self.node.snapshot is not None:
            self._first.stop()
            self.set_interval(TICK_S, self.look)

    def look(self) -> None:
        """Show what the sampling process has said since."""
        snapshot = self._collector.poll()
        if snapshot is not None:
            if self._recorder is not None and self._recording_problem is None:
                try:
                    self._recorder.take(snapshot)
                except EnvironmentProblem as error:
                    self._recording_problem = str(error)
            self.node.show(snapshot)
        self.show_top()

    def show_top(self) -> None:
        """What the node is, how old the numbers are, and what is wrong."""
        age_s = self._collector.age_s
        words = node_lines.header(self.node.snapshot, age_s, self.node.paused, self._interval_s)
        if self._recorder is not None and self._recording_problem is None:
            words.append("recording")
        spans: list[Span] = [(" · ".join(words), "")]
        problem = self._recording_problem or self._collector.problem
        if problem:
            spans.append(("  " + problem, "warn"))
        self.query_one("#top", LineView).show([tuple(spans)])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what has something to work on."""
        return self.keys_are_in(action)

    def action_step(self, direction: int) -> None:
        """The GPU beside."""
        self.node.move(0, direction)

    def action_move(self, step: int) -> None:
        """Another row."""
        self.node.move(step)

    def action_enter(self) -> None:
        """Open what is selected in place."""
        self.node.toggle_details()

    def action_other_list(self) -> None:
        """GPUs or processes."""
        self.node.other_list()

    def action_help(self) -> None:
        """Keys, marks and terms."""
        self.app.push_screen(ReadDialog("Help", help_lines(self._glyphs, "node")))

    def action_quit(self) -> None:
        """End the program."""
        self.app.exit(0)


def _collect_garbage_again() -> None:
    """Switched off while the program was loaded; what is there now is not looked through any more."""
    gc.freeze()
    gc.enable()
