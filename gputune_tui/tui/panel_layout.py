"""How much room each panel of the node gets: a pure function of the number of GPUs and the size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum


class Density(IntEnum):
    """How one GPU is shown, from the barest."""

    STRIP = 0
    """A cell: index and level."""
    SHORT = 1
    """A line with one bar."""
    ROW = 2
    """A line with both bars and what it draws."""
    BARS = 3
    """Three lines: what it is and draws, utilisation, memory."""
    CARD = 4
    """As `BARS`, with graphs below."""


CELL_COLUMNS = 4
LEAST_COLUMNS = {Density.SHORT: 37, Density.ROW: 74, Density.BARS: 37, Density.CARD: 37}
BAR_ROWS = 3
GOOD_GRAPH_ROWS = 2
"""One of utilisation, one of memory."""
MOST_GRAPH_ROWS = 14
PROCESS_ROWS = 7
"""A header and six processes."""
FEW_PROCESS_ROWS = 3
"""While something is looked at closely."""
HOST_ROWS = 1
ROOMY_HOST_ROWS = 4
FRAME_ROWS, FRAME_COLUMNS = 6, 2
"""Lines around all three panels, and columns beside each."""


@dataclass(frozen=True)
class PanelLayout:
    """Rows inside each panel, frames not counted; `columns` GPUs stand side by side."""

    density: Density
    columns: int
    column_width: int
    graph_rows: int
    is_framed: bool
    gpu_rows: int
    """Details included; with fewer rows than all GPUs need they scroll."""
    detail_rows: int
    host_rows: int
    process_rows: int

    @property
    def rows_per_gpu(self) -> int:
        """Lines of one GPU."""
        return _rows_per_gpu(self.density, self.graph_rows)


def panel_layout(gpus: int, width: int, height: int, details: int = 0, message_rows: int = 1) -> PanelLayout:
    """The richest form in which every GPU, the host and six processes have a place; else the barest.

    Args:
        gpus: how many GPUs and MIG instances there are.
        width, height: of all panels together, frames included.
        details: lines that are shown of a GPU that is looked at; processes make room for them.
        message_rows: lines of what is said where there is no GPU.
    """
    width, height = max(1, width), max(1, height)
    if not gpus:
        return _without_gpus(width, height, message_rows)
    least = FEW_PROCESS_ROWS if details else PROCESS_ROWS
    for is_framed in (True, False):
        room = height - (FRAME_ROWS if is_framed else 0) - HOST_ROWS - least - details
        inner = width - (FRAME_COLUMNS if is_framed else 0)
        found = _richest(gpus, inner, room, is_framed)
        if found is not None:
            return _with_rest(found, gpus, details, height - (FRAME_ROWS if is_framed else 0))
    columns = max(1, width // CELL_COLUMNS)
    strip = PanelLayout(Density.STRIP, columns, CELL_COLUMNS, 0, False, _ceil(gpus, columns), 0, 0, 0)
    return _squeezed(strip, details, height)


def _richest(gpus: int, width: int, room: int, is_framed: bool) -> PanelLayout | None:
    """With nothing but the GPUs' rows filled in."""
    for density in (Density.CARD, Density.BARS, Density.ROW, Density.SHORT):
        most_columns = (width + 1) // (LEAST_COLUMNS[density] + 1)
        best: tuple[int, int, int] | None = None
        for columns in range(1, min(most_columns, gpus) + 1):
            lines = _ceil(gpus, columns)
            graph_rows = 0
            if density is Density.CARD:
                graph_rows = min(GOOD_GRAPH_ROWS, room // lines - BAR_ROWS)
                if graph_rows < 1:
                    continue
            gpu_rows = lines * _rows_per_gpu(density, graph_rows)
            if gpu_rows <= room and (best is None or graph_rows > best[1]):
                best = columns, graph_rows, gpu_rows
                if density is not Density.CARD or graph_rows == GOOD_GRAPH_ROWS:
                    break
        if best is not None:
            columns, graph_rows, gpu_rows = best
            column_width = (width + 1) // columns - 1
            return PanelLayout(density, columns, column_width, graph_rows, is_framed, gpu_rows, 0, 0, 0)
    columns = max(1, width // CELL_COLUMNS)
    if not is_framed and _ceil(gpus, columns) <= room:
        return PanelLayout(Density.STRIP, columns, CELL_COLUMNS, 0, False, _ceil(gpus, columns), 0, 0, 0)
    return None


def _with_rest(layout: PanelLayout, gpus: int, details: int, height: int) -> PanelLayout:
    """Share what is left: graphs, then the host, then the processes."""
    left = height - layout.gpu_rows - details - HOST_ROWS - (FEW_PROCESS_ROWS if details else PROCESS_ROWS)
    if layout.density is Density.CARD:
        lines = _ceil(gpus, layout.columns)
        most = min(MOST_GRAPH_ROWS, max(layout.graph_rows, (height // 2) // lines - BAR_ROWS))
        more = max(0, min(most - layout.graph_rows, left * 2 // 3 // lines))
        layout = replace(layout, graph_rows=layout.graph_rows + more, gpu_rows=layout.gpu_rows + more * lines)
        left -= more * lines
    host = ROOMY_HOST_ROWS + (left >= 12) if left >= ROOMY_HOST_ROWS + 1 else HOST_ROWS
    return replace(
        layout,
        gpu_rows=layout.gpu_rows + details,
        detail_rows=details,
        host_rows=host,
        process_rows=height - layout.gpu_rows - details - host,
    )


def _squeezed(layout: PanelLayout, details: int, height: int) -> PanelLayout:
    """Where not all has a place: GPUs first, then a line of the host, then what is left for the processes."""
    details = max(0, min(details, height - layout.gpu_rows - HOST_ROWS - FEW_PROCESS_ROWS))
    gpu_rows = min(layout.gpu_rows + details, height)
    host = min(HOST_ROWS, height - gpu_rows)
    return replace(
        layout, gpu_rows=gpu_rows, detail_rows=details, host_rows=host, process_rows=height - gpu_rows - host
    )


def _without_gpus(width: int, height: int, message_rows: int) -> PanelLayout:
    is_framed = height >= FRAME_ROWS + message_rows + HOST_ROWS + PROCESS_ROWS
    if is_framed:
        width, height = width - FRAME_COLUMNS, height - FRAME_ROWS
    rows = max(1, min(message_rows, height - HOST_ROWS))
    left = height - rows - HOST_ROWS - PROCESS_ROWS
    host = max(0, min(HOST_ROWS, height - rows))
    if left >= ROOMY_HOST_ROWS:
        host = ROOMY_HOST_ROWS + min(MOST_GRAPH_ROWS, max(0, (left - ROOMY_HOST_ROWS) // 3))
    return PanelLayout(Density.STRIP, 1, max(1, width), 0, is_framed, rows, 0, host, max(0, height - rows - host))


def _rows_per_gpu(density: Density, graph_rows: int) -> int:
    return BAR_ROWS + graph_rows if density >= Density.BARS else 1


def _ceil(count: int, per_line: int) -> int:
    return -(-count // per_line)
