"""The frame of the main screen: shown at once, while what fills it is still being imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from gputune_tui.tui.actions import ACTIONS, key_text
from gputune_tui.tui.widgets.lines import LineView

NODE = (("gpus", "GPUs"), ("host", "CPU"), ("processes", "Processes"))
TUNE = (("knobs", "Tune"), ("board", "Leaderboard"), ("running", "Idle"))


class FrameScreen(Screen[None]):
    """Panels with their names; calls `then` when they stand on the terminal."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,f10", "app.exit", "quit", show=False)]
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-wide")]  # noqa: RUF012  # as textual declares it
    VERTICAL_BREAKPOINTS = [(0, "-short"), (30, "-tall")]  # noqa: RUF012  # likewise
    DEFAULT_CSS = """
    FrameScreen {
        #top, #keys { height: 1; background: $panel; padding: 0 1; }
        #panes { height: 1fr; }
        #node { width: 5fr; }
        #tune { width: 7fr; }
        #panes LineView { border: round $panel-lighten-2; }
        #gpus, #host { height: 3; }
        #processes, #board { height: 1fr; }
        #knobs { height: 3; }
        #running { height: 6; }
        &.-tall #running { height: 8; }
        &.-narrow #node { display: none; }
        &.-ascii #panes LineView { border: ascii $panel-lighten-2; }
    }
    """

    def __init__(self, then: Callable[[], None], is_ascii: bool) -> None:
        super().__init__(classes="-ascii" if is_ascii else "")
        self._then = then

    def compose(self) -> ComposeResult:
        yield LineView(id="top")
        with Horizontal(id="panes"):
            for pane, panels in (("node", NODE), ("tune", TUNE)):
                with Vertical(id=pane):
                    for name, _ in panels:
                        yield LineView(id=name)
        yield LineView(id="keys")

    def on_mount(self) -> None:
        """Name the panels."""
        for name, title in (*NODE, *TUNE):
            self.query_one(f"#{name}", LineView).name_panel(title)
        keys = [((f"{key_text(action.keys[0])} ", "accent"), (f"{action.label} ", "")) for action in ACTIONS]
        shown = [key for key, action in zip(keys, ACTIONS, strict=True) if action.in_footer]
        self.query_one("#keys", LineView).show([tuple(span for key in shown for span in key)])
        self.query_one("#top", LineView).show([(("reading the node", ""),)])
        self.call_after_refresh(self._then)
