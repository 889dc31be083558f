"""What every screen with the node's panels can do with them."""

from __future__ import annotations

from typing import Protocol

from textual.screen import Screen
from textual.widgets import Input

from gputune_tui.tui.actions import pane_of
from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.screens.dialogs import PromptDialog
from gputune_tui.tui.screens.signal_dialog import SignalDialog
from gputune_tui.tui.widgets.node_pane import NodePane

INTERVAL_STEP_S, LEAST_INTERVAL_S, MOST_INTERVAL_S = 0.5, 0.5, 10.0
FILTER_HINT = "Words that must be in the command, user or PID; !word must not. Enter takes them, without any shows all."


class NodeSource(Protocol):
    """What reads the node."""

    def set_interval(self, seconds: float) -> None:
        """Seconds between two snapshots."""

    def expand(self, gpus: tuple[int, ...]) -> None:
        """The GPUs of which everything is to be read."""


class FilterDialog(PromptDialog):
    """Takes an empty line as well, which shows all."""

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the line."""
        event.stop()
        event.prevent_default()  # textual would call the base class as well
        self.dismiss(event.value.strip())


class NodeScreen(Screen[None]):
    """Owns the pane of the node."""

    def __init__(self, source: NodeSource, glyphs: Glyphs, interval_s: float, is_readonly: bool) -> None:
        super().__init__()
        self._source = source
        self._glyphs = glyphs
        self._interval_s = interval_s
        self._is_readonly = is_readonly
        self.node = NodePane(glyphs, id="node")

    def show_top(self) -> None:
        """Write the first line anew."""

    def keys_are_in(self, action: str) -> bool:
        """Whether the pane that an action belongs to has the keys."""
        return pane_of(action) != "node" or self.node.has_keys

    def on_node_pane_looked(self, message: NodePane.Looked) -> None:
        """Somebody looks closely at a GPU."""
        self._source.expand(message.gpus)

    def on_descendant_focus(self) -> None:
        """Other keys may work now."""
        self.refresh_bindings()

    def action_tree(self) -> None:
        """Processes as a tree, or as a list."""
        view = self.node.processes.view
        self.node.change_view(view.with_tree(not view.is_tree))

    def action_sort(self, step: int) -> None:
        """By another column."""
        self.node.change_view(self.node.processes.view.sorted_by(step))

    def action_invert(self) -> None:
        """The other way round."""
        self.node.change_view(self.node.processes.view.inverted())

    def action_filter(self) -> None:
        """Ask for words."""
        view = self.node.processes.view

        def typed(text: str | None) -> None:
            if text is not None:
                self.node.change_view(view.with_filter(text))

        self.app.push_screen(FilterDialog("Filter", FILTER_HINT, view.filter), typed)

    def action_signal(self) -> None:
        """Ask which signal to send to the selected process."""
        process = self.node.selected_process
        if process is not None and self.focused is self.node.processes:
            self.app.push_screen(SignalDialog(process, self._is_readonly))

    def action_interval(self, step: int) -> None:
        """Read more or less often."""
        seconds = self._interval_s + step * INTERVAL_STEP_S
        self._interval_s = max(LEAST_INTERVAL_S, min(seconds, MOST_INTERVAL_S))
        self._source.set_interval(self._interval_s)
        self.show_top()

    def action_zoom(self, step: int) -> None:
        """A longer or shorter past."""
        self.node.zoom(step)

    def action_pause(self) -> None:
        """Hold the node's panels still, or let them go on."""
        self.node.paused = not self.node.paused
        self.show_top()
