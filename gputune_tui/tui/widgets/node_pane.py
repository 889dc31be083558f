"""The left half: GPUs or why there are none, the CPU with memory, and the processes."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical

from gputune_tui.domain.telemetry import NodeSnapshot
from gputune_tui.telemetry.history import History
from gputune_tui.tui import node_lines
from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.widgets.lines import Line, LineView

FULL_PANELS = 3
"""Up to so many GPUs have their graphs; more have a line each."""
CPU = "cpu"


class NodePane(Vertical):
    """Shows one snapshot after another and remembers what its graphs need."""

    DEFAULT_CSS = """
    NodePane {
        width: 1fr;
        LineView { border: round $panel-lighten-2; }
        #gpus { max-height: 60%; }
        #processes { height: 1fr; min-height: 3; }
    }
    """

    def __init__(self, glyphs: Glyphs, *, id: str) -> None:  # noqa: A002  # textual's name
        super().__init__(id=id)
        self._glyphs = glyphs
        self._history = History()
        self.snapshot: NodeSnapshot | None = None
        """The newest one that was shown."""
        self.budget_bytes: int | None = None
        """Marked on the memory bars of GPUs."""
        self.paused = False

    def compose(self) -> ComposeResult:
        yield LineView(id="gpus")
        yield LineView(id="host")
        yield LineView(id="processes")

    def on_mount(self) -> None:
        """Say what is to come."""
        self.query_one("#gpus", LineView).name_panel("GPUs")
        self.query_one("#gpus", LineView).show([(("asking the driver", "dim"),)])
        self.query_one("#host", LineView).name_panel("CPU")
        self.query_one("#processes", LineView).name_panel("Processes")

    def show(self, snapshot: NodeSnapshot) -> None:
        """Take in a snapshot; while paused it only goes into the history."""
        values = {f"gpu{d.index}": d.util_fraction if d.state == "live" else None for d in snapshot.devices}
        self._history.push({CPU: snapshot.host.cpu_fraction, **values})
        if not self.paused:
            self.snapshot = snapshot
            self.redraw()

    def redraw(self) -> None:
        """Show the snapshot in the present width."""
        snapshot = self.snapshot
        if snapshot is None or not self.is_mounted:
            return
        gpus, host, processes = (self.query_one(f"#{name}", LineView) for name in ("gpus", "host", "processes"))
        width = max(10, gpus.size.width)
        gpus.name_panel("GPUs", self._gpus_subtitle(snapshot))
        gpus.show(self._gpu_lines(snapshot, width))
        host.name_panel(*node_lines.host_title(snapshot.host))
        host.show(node_lines.host_lines(snapshot.host, self._history.last(CPU, width), width, self._glyphs))
        processes.name_panel("Processes", str(len(snapshot.processes)))
        processes.show(node_lines.process_lines(snapshot, width, self._glyphs))

    def on_resize(self) -> None:
        """Bars and graphs have another width."""
        self.call_after_refresh(self.redraw)

    def _gpus_subtitle(self, snapshot: NodeSnapshot) -> str:
        lost = sum(device.state == "lost" for device in snapshot.devices)
        return " · ".join(filter(None, (str(len(snapshot.devices)), f"{lost} lost" if lost else "")))

    def _gpu_lines(self, snapshot: NodeSnapshot, width: int) -> list[Line]:
        devices, glyphs = snapshot.devices, self._glyphs
        if not devices:
            return node_lines.problem_lines(snapshot, width) or [(("asking the driver", "dim"),)]
        if len(devices) > FULL_PANELS or self.screen.size.height < 30:
            return [node_lines.device_row(device, width, glyphs, self.budget_bytes) for device in devices]
        lines: list[Line] = []
        for device in devices:
            history = self._history.last(f"gpu{device.index}", width)
            lines.append(((node_lines.device_title(device), "strong"),))
            lines += node_lines.device_lines(device, history, width, glyphs, self.budget_bytes)
        return lines
