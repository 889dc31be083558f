"""The left half: GPUs or why there are none, the CPU with memory, and the processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from gputune_tui.domain.telemetry import DeviceSnapshot, NodeSnapshot, ProcessSnapshot
from gputune_tui.telemetry.history import History
from gputune_tui.tui import host_lines, node_lines
from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.gpu_facts import device_facts, flowed
from gputune_tui.tui.gpu_lines import Entry, Past, device_name, memory_fraction
from gputune_tui.tui.graph import values_per_column
from gputune_tui.tui.panel_layout import Density, PanelLayout, panel_layout
from gputune_tui.tui.process_table import View
from gputune_tui.tui.widgets.gpu_grid import GpuGrid
from gputune_tui.tui.widgets.lines import LineView
from gputune_tui.tui.widgets.process_list import ProcessList

CPU = "cpu"
ZOOMS = (1, 4, 16)
"""Values in one dot of a graph."""


class NodePane(Vertical):
    """Shows one snapshot after another and remembers what its graphs need."""

    DEFAULT_CSS = """
    NodePane {
        width: 1fr;
        LineView { border: round $panel-lighten-2; }
        #gpus, #host { height: 3; }
        #processes { height: 1fr; min-height: 0; }
        &.-bare LineView, &.-bare LineView:focus { border: none; }
    }
    """

    class Looked(Message):
        """Somebody looks closely at other GPUs."""

        def __init__(self, gpus: tuple[int, ...]) -> None:
            super().__init__()
            self.gpus = gpus

    def __init__(self, glyphs: Glyphs, *, id: str) -> None:  # noqa: A002  # textual's name
        super().__init__(id=id)
        self._glyphs = glyphs
        self._history = History()
        self._marks: dict[int, str] = {}
        self._zoom = ZOOMS[0]
        self._opened: str | None = None
        self.gpus = GpuGrid(glyphs, id="gpus")
        self.host = LineView(id="host")
        self.processes = ProcessList(glyphs, id="processes")
        self.snapshot: NodeSnapshot | None = None
        """The newest one that was shown."""
        self.budget_bytes: int | None = None
        """Marked on the memory bars of GPUs."""
        self.paused = False

    def compose(self) -> ComposeResult:
        yield self.gpus
        yield self.host
        yield self.processes

    def on_mount(self) -> None:
        """Say what is to come."""
        self.gpus.name_panel("GPUs")
        self.gpus.say([(("asking the driver", "dim"),)])
        self.host.name_panel("CPU")
        self.processes.name_panel("Processes")

    @property
    def has_keys(self) -> bool:
        """Whether the keys go to one of its lists."""
        return self.is_attached and self.screen.focused in (self.gpus, self.processes)

    @property
    def is_in_gpus(self) -> bool:
        """Whether they go to the GPUs. A widget itself learns only later that it has the focus."""
        return self.is_attached and self.screen.focused is self.gpus

    @property
    def selected_process(self) -> ProcessSnapshot | None:
        """Of the list of processes."""
        return self.processes.selected

    def show(self, snapshot: NodeSnapshot) -> None:
        """Take in a snapshot; while paused it only goes into the history."""
        values: dict[str, float | None] = {CPU: snapshot.host.cpu_fraction}
        for device in snapshot.devices:
            is_live = device.state == "live"
            values[f"gpu{device.index}"] = device.util_fraction if is_live else None
            values[f"mem{device.index}"] = memory_fraction(device) if is_live else None
        self._history.push(values)
        if not self.paused:
            self.snapshot = snapshot
            self.redraw()

    def mark(self, is_start: bool) -> None:
        """A trial starts or ends: a tick on the graphs."""
        oldest = self._history.ticks - self._history.capacity
        self._marks = {number: sign for number, sign in self._marks.items() if number >= oldest}
        self._marks[self._history.ticks] = self._glyphs.ticks[0 if is_start else 1]

    def redraw(self) -> None:
        """Show the snapshot in the present size."""
        snapshot = self.snapshot
        if snapshot is None or not self.is_mounted or not self.size.width:
            return
        layout = self._arrange(snapshot)
        inner = max(1, self.size.width - (2 if layout.is_framed else 0))
        self.gpus.name_panel("GPUs", self._gpus_subtitle(snapshot))
        if snapshot.devices:
            entries = self._entries(snapshot, layout)
            device = self._opened_device(snapshot)
            details = [] if device is None else flowed(device_facts(device), inner)
            self.gpus.fill(entries, layout, self._opened, details)
        else:
            self.gpus.say(node_lines.problem_lines(snapshot, inner) or [(("asking the driver", "dim"),)])
        past = self._past(CPU, inner)
        # Its value stands in a line: textual draws a panel anew whose border changes.
        self.host.name_panel(host_lines.host_title(snapshot.host)[0])
        self.host.show(
            host_lines.host_lines(
                snapshot.host, past.util, inner, self._glyphs, layout.host_rows, past.taken, past.zoom, past.marks
            )
        )
        self.processes.show_processes(snapshot.processes, bool(snapshot.devices), snapshot.process_note, inner)
        self.processes.name_panel("Processes", f"{self.processes.shown} {self.processes.view.words}")

    def on_resize(self) -> None:
        """Bars and graphs have another width."""
        self.redraw()

    def on_descendant_focus(self) -> None:
        """The selected GPU is marked."""
        self.redraw()

    def on_descendant_blur(self) -> None:
        """Nothing is selected."""
        self.redraw()

    # What the keys do.

    def move(self, rows: int, columns: int = 0) -> None:
        """Move the selection of the list that has the keys."""
        if not self.is_in_gpus:
            self.processes.move(rows)
        elif self.gpus.move(rows, columns):
            self.redraw()

    def other_list(self) -> None:
        """GPUs or processes."""
        # At once: the next key may be there already.
        self.screen.set_focus(self.processes if self.is_in_gpus else self.gpus)

    def toggle_details(self) -> None:
        """Open the selected GPU or process in place, or close it."""
        snapshot = self.snapshot
        if not self.is_in_gpus:
            self.processes.toggle_details()
        elif snapshot is not None and snapshot.devices:
            places = _places(snapshot)
            place, device = places[min(self.gpus.cursor, len(places) - 1)]
            self._opened = None if place == self._opened else place
            self.post_message(self.Looked(() if self._opened is None else (device.index,)))
        self.redraw()

    def change_view(self, view: View) -> None:
        """Sort, filter or arrange the processes otherwise."""
        self.processes.view = view
        self.redraw()

    def zoom(self, step: int) -> None:
        """More or fewer values in a column of the graphs."""
        place = ZOOMS.index(self._zoom) + step
        self._zoom = ZOOMS[max(0, min(place, len(ZOOMS) - 1))]
        self.redraw()

    def _arrange(self, snapshot: NodeSnapshot) -> PanelLayout:
        """Compute the layout and give the panels their heights."""
        width, height = self.size
        device = self._opened_device(snapshot)
        details = 0 if device is None else len(flowed(device_facts(device), max(1, width - 2)))
        message_rows = len(node_lines.problem_lines(snapshot, max(1, width - 2))) or 1
        layout = panel_layout(len(_places(snapshot)), width, height, details, message_rows)
        self.set_class(not layout.is_framed, "-bare")
        frame = 2 if layout.is_framed else 0
        for view, rows in ((self.gpus, layout.gpu_rows), (self.host, layout.host_rows)):
            view.display = rows > 0
            if view.styles.height is None or view.styles.height.value != rows + frame:
                view.styles.height = rows + frame
        return layout

    def _opened_device(self, snapshot: NodeSnapshot) -> DeviceSnapshot | None:
        return next((device for place, device in _places(snapshot) if place == self._opened), None)

    def _entries(self, snapshot: NodeSnapshot, layout: PanelLayout) -> Sequence[Entry]:
        ours = {process.device_index for process in snapshot.processes if process.is_trial}
        entries: list[Entry] = []
        for device in snapshot.devices:
            has_graphs = layout.density is Density.CARD
            past = self._past(f"gpu{device.index}", layout.column_width) if has_graphs else Past()
            if has_graphs:
                past = replace(past, memory=self._history.last(f"mem{device.index}", len(past.util)))
            entry = Entry(device, None, device.index in ours, False, past, self.budget_bytes)
            entries += [entry, *(replace(entry, instance=instance, is_ours=False) for instance in device.mig)]
        if self.is_in_gpus and entries:
            place = min(self.gpus.cursor, len(entries) - 1)
            entries[place] = replace(entries[place], is_selected=True)
        return entries

    def _past(self, name: str, width: int) -> Past:
        count = (width + 1) * values_per_column(self._glyphs, self._zoom)
        return Past(self._history.last(name, count), (), self._history.ticks, self._zoom, self._marks)

    def _gpus_subtitle(self, snapshot: NodeSnapshot) -> str:
        lost = sum(device.state == "lost" for device in snapshot.devices)
        names = {device_name(device) for device in snapshot.devices if device.name}
        count = str(len(snapshot.devices))
        model = f"{count} x {names.pop()}" if len(names) == 1 else count
        return " · ".join(filter(None, (model, f"{lost} lost" if lost else "")))


def _places(snapshot: NodeSnapshot) -> list[tuple[str, DeviceSnapshot]]:
    """The places of the grid, in order."""
    return [
        (entry.place, device)
        for device in snapshot.devices
        for entry in (Entry(device), *(Entry(device, instance) for instance in device.mig))
    ]
