"""Both panes, and what every key of the table does."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal
from textual.widgets import Footer

from gputune_tui.domain.choices import BATCH
from gputune_tui.domain.knobs import knob_named, value_text
from gputune_tui.engine.commands import Search, StudyConfig
from gputune_tui.engine.events import DeviceInUse, Previewed, StudyOpened, TrialFinished, TrialStarted
from gputune_tui.engine.requests import Export, Open, Preview
from gputune_tui.engine.script_text import script_lines
from gputune_tui.ranking.taints import neighbour_text
from gputune_tui.ranking.wording import why_unranked
from gputune_tui.tui import node_lines, tune_lines
from gputune_tui.tui.actions import bindings
from gputune_tui.tui.bridge import TICK_S, Bridge, EngineSaid, NodeSeen
from gputune_tui.tui.glyphs import ASCII, Glyphs
from gputune_tui.tui.gpu_lines import device_cell
from gputune_tui.tui.host_lines import host_title
from gputune_tui.tui.screens.dialogs import ConfirmDialog, PromptDialog, ReadDialog
from gputune_tui.tui.screens.frame_screen import FrameScreen
from gputune_tui.tui.screens.node_screen import NodeScreen
from gputune_tui.tui.widgets.lines import Line, LineView
from gputune_tui.tui.widgets.tune_pane import TunePane

LAUNCHING = ("run_b", "compare", "search")
TUNING = (*LAUNCHING, "crown", "export", "take_row", "reset_b")
"""What would be done to a pane that the keys are not in."""


class MainScreen(NodeScreen):
    """The node on the left, tuning on the right; below 120 columns one of them at a time."""

    BINDINGS: ClassVar[list[BindingType]] = list(bindings())
    HORIZONTAL_BREAKPOINTS = FrameScreen.HORIZONTAL_BREAKPOINTS
    VERTICAL_BREAKPOINTS = FrameScreen.VERTICAL_BREAKPOINTS

    def __init__(
        self,
        bridge: Bridge,
        config: StudyConfig | None,
        search: Search,
        glyphs: Glyphs,
        interval_s: float = 1.0,
        is_readonly: bool = False,
    ) -> None:
        super().__init__(bridge, glyphs, interval_s, is_readonly)
        self.bridge = bridge
        """The seam to engine and sampler; whoever shows this screen closes it."""
        self._config = config
        self.tune = TunePane(glyphs, bridge.send, search, id="tune")
        self._age_s: float | None = None
        self._problem: str | None = None
        self._keys: tuple[bool, ...] = ()
        self._on_preview: Callable[[Previewed], None] | None = None
        """The export dialog's, while it is open."""

    def compose(self) -> ComposeResult:
        yield LineView(id="top")
        with Horizontal(id="panes"):
            yield self.node
            yield self.tune
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Show something first; both processes are started after that."""
        self.add_class("-tune")
        self.set_class(self._glyphs is ASCII, "-ascii")
        self.show_top()
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        gc.freeze()
        gc.enable()
        self.bridge.start(self)
        self.set_interval(TICK_S, self.bridge.tick)
        if self._config is not None and self._config.workload.name:
            self.bridge.send(Open(self._config))
        else:
            self.action_open()

    def on_engine_said(self, message: EngineSaid) -> None:
        """Events of the engine."""
        self.tune.take(message.events)
        for event in message.events:
            if isinstance(event, TrialStarted | TrialFinished):
                self.node.mark(isinstance(event, TrialStarted))
            elif isinstance(event, DeviceInUse):
                self._ask_to_share(event)
            elif isinstance(event, StudyOpened):
                self._tell_script(event)
            elif isinstance(event, Previewed) and self._on_preview is not None:
                self._on_preview(event)
        state = self.tune.state
        self.bridge.set_quiet(state.is_timed)
        opened = state.opened
        on_gpu = opened is not None and opened.identity.environment.device_kind != "cpu"
        self.node.budget_bytes = opened.budget.device_bytes if opened is not None and on_gpu else None

    def _tell_script(self, event: StudyOpened) -> None:
        """Before the first trial of a script: what it does by itself."""
        script = event.identity.script
        if script is not None and not event.finished_trials:
            lines: list[Line] = [((line, ""),) for line in script_lines(script)]
            self.app.push_screen(ReadDialog("The script as it is", lines))

    def _ask_to_share(self, event: DeviceInUse) -> None:
        """A trial beside somebody else's process is started only by who has read whose it is."""
        lines: list[Line] = [((f"Somebody else computes on {event.device}:", ""),)]
        lines += [((neighbour_text(other), "warn"),) for other in event.others]
        lines.append((("Both would be slower, and the figures would be those of a shared card.", "dim"),))

        def answered(yes: bool | None) -> None:
            if yes:
                self.tune.share()

        self.app.push_screen(ConfirmDialog("Device in use", lines, "Measure beside it?"), answered)

    def on_node_seen(self, message: NodeSeen) -> None:
        """News of the node, or that there are none."""
        self._age_s, self._problem = message.age_s, message.problem
        if message.snapshot is not None:
            self.node.show(message.snapshot)
        self.show_top()

    def on_tune_pane_changed(self) -> None:
        """Other keys may work now."""
        self.show_top()
        state = self.tune.state
        keys = (state.opened is None, state.task is None, self.tune.can_export)
        if keys != self._keys:
            self._keys = keys
            self.refresh_bindings()

    def on_row_list_moved(self) -> None:
        """Another row is selected."""
        self.on_tune_pane_changed()

    def on_resize(self) -> None:
        """The first line has another width."""
        self.show_top()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Dim the keys that have nothing to work on."""
        state = self.tune.state
        if not self.keys_are_in(action) or (self.node.has_keys and action in TUNING):
            return False
        if self._is_readonly and action in LAUNCHING:
            return None
        if action in ("run_b", "compare", "search", "crown", "reset_b") and state.opened is None:
            return None
        if action == "step" and state.opened is None and not self.node.has_keys:
            return None
        if action == "stop" and state.task is None and not state.waiting:
            return None
        if action == "export" and not (self.tune.is_mounted and self.tune.can_export):
            return None
        return True

    def show_top(self) -> None:
        """What the node is, and what runs."""
        narrow = self.has_class("-narrow")
        node = " · ".join(node_lines.header(self.node.snapshot, self._age_s, self.node.paused, self._interval_s))
        spans: list[tuple[str, str]] = []
        if narrow:
            monitor = self.has_class("-monitor")
            spans += [("Monitor", "cursor" if monitor else "dim"), (" | ", "dim")]
            spans += [("Tune", "dim" if monitor else "cursor"), ("  ", "")]
            snapshot = self.node.snapshot
            if snapshot is not None and not monitor:
                cells = [device_cell(device, self._glyphs) for device in snapshot.devices]
                label = ["SIMULATED"] if snapshot.simulated else []
                node = " ".join([*label, *cells, f"CPU {host_title(snapshot.host)[1]}"])
        title, value = tune_lines.running_title(self.tune.state)
        spans.append((node, ""))
        if self._problem:
            spans.append(("  " + self._problem, "warn"))
        elif self.tune.state.task:
            spans.append(("   " + " · ".join(filter(None, (title, value))), "accent"))
        self.query_one("#top", LineView).show([tuple(spans)])

    # What the keys do, in the order of the table.

    def action_run_b(self) -> None:
        """One trial of B."""
        self.tune.run_b()

    def action_compare(self) -> None:
        """A against B."""
        self.tune.compare()

    def action_search(self) -> None:
        """Start or stop the search."""
        self.tune.search()

    def action_stop(self) -> None:
        """End what runs."""
        self.tune.stop()

    def action_crown(self) -> None:
        """B becomes A."""
        self.tune.crown()

    def action_export(self) -> None:
        """Ask for a file and write the selected trial's settings."""
        row = self.tune.selected
        if row is None:
            return
        from gputune_tui.tui.screens.export_dialog import ExportDialog  # not needed for the first picture

        trial_id = row.trial.id
        dialog = ExportDialog(trial_id, lambda target: self.bridge.send(Preview(trial_id, target)))

        def write(order: Export | None) -> None:
            self._on_preview = None
            if order is not None:
                self.bridge.send(order)

        self._on_preview = dialog.show
        self.app.push_screen(dialog, write)

    def action_open(self) -> None:
        """Choose a workload."""

        from gputune_tui.tui.screens.open_dialog import OpenDialog  # not needed for the first picture

        def chosen(config: StudyConfig | None) -> None:
            if config is not None:
                self._config = config
                self.tune.stop()
                self.bridge.send(Open(config))

        self.app.push_screen(OpenDialog(self._config), chosen)

    def action_help(self) -> None:
        """Keys, marks and terms."""
        from gputune_tui.tui.help_text import help_lines  # not needed for the first picture

        self.app.push_screen(ReadDialog("Help", help_lines(self._glyphs)))

    def action_quit(self) -> None:
        """End the program; what runs is ended after the screen is gone."""
        self.app.exit(0)

    def action_take_row(self) -> None:
        """The selected row's settings become B."""
        self.tune.take_row()

    def action_step(self, direction: int) -> None:
        """Step the selected knob of B."""
        if self.node.has_keys:
            self.node.move(0, direction)
        elif not self.tune.is_in_board:
            self.tune.step(direction)

    def action_enter(self) -> None:
        """Type a value for the selected knob, or read all about the selected trial."""
        if self.node.has_keys:
            self.node.toggle_details()
        elif self.tune.is_in_board:
            self._show_trial()
        elif isinstance(self.tune.knobs.cursor, str) and self.tune.state.b is not None:
            knob = knob_named(self.tune.knobs.cursor)
            hint = f"{knob.name}: {knob.help}. Takes: {knob.values}."
            present = value_text(getattr(self.tune.state.b, knob.name))

            def typed(text: str | None) -> None:
                if text is not None:
                    self.tune.type_value(text)

            title = "micro-batch" if knob.name == BATCH else knob.name
            self.app.push_screen(PromptDialog(title, hint, present), typed)

    def _show_trial(self) -> None:
        row = self.tune.selected
        if row is None:
            return
        lines: list[Line] = [((fact, ""),) for fact in tune_lines.trial_facts(row, self.tune.state)]
        why = why_unranked(row)
        if why:
            lines.append(((why, "bad"),))
        lines += [((flag, "warn"),) for flag in row.flags]
        if row.trial.failure is not None and row.trial.failure.log:
            lines.append(((f"log: {row.trial.failure.log}", "dim"),))
        self.app.push_screen(ReadDialog(f"Trial {row.trial.id}", lines))

    def action_reset_b(self) -> None:
        """B is A again."""
        self.tune.reset_b()

    def action_move(self, step: int) -> None:
        """Move the selection of the list that has the keys."""
        if self.node.has_keys:
            self.node.move(step)
        else:
            (self.tune.board if self.tune.is_in_board else self.tune.knobs).move(step)

    def action_other_list(self) -> None:
        """The other one of the pane that has the keys."""
        (self.node if self.node.has_keys else self.tune).other_list()

    def action_messages(self) -> None:
        """What was said so far."""
        lines: list[Line] = [((m.text, "bad" if m.is_error else ""),) for m in self.tune.state.messages]
        self.app.push_screen(ReadDialog("Messages", lines or [(("nothing was said yet", "dim"),)], at_end=True))

    def action_show_monitor(self) -> None:
        """The node."""
        self.set_class(True, "-monitor")
        self.set_class(False, "-tune")
        self.set_focus(self.node.processes)
        self.show_top()

    def action_show_tune(self) -> None:
        """The tuning pane."""
        self.set_class(False, "-monitor")
        self.set_class(True, "-tune")
        self.set_focus(self.tune.knobs)
        self.show_top()
