"""The processes: the cursor stays on its process however the rows are sorted, and the selected one opens in place."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from gputune_tui.domain.telemetry import ProcessSnapshot
from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.process_table import Key, View, arranged, detail_lines, header_line, key_of, process_line
from gputune_tui.tui.widgets.lines import Line
from gputune_tui.tui.widgets.rows import ListRow, RowList

DETAIL = "detail"


class ProcessList(RowList):
    """Rows of processes; those of details are stepped over."""

    def __init__(self, glyphs: Glyphs, *, id: str) -> None:  # noqa: A002  # textual's name
        super().__init__(id=id)
        self._glyphs = glyphs
        self._processes: dict[Hashable, ProcessSnapshot] = {}
        self._opened: Key | None = None
        self.view = View()

    @property
    def selected(self) -> ProcessSnapshot | None:
        """As it was at the last reading."""
        return self._processes.get(self.cursor)

    @property
    def shown(self) -> int:
        """How many pass the filter."""
        return len(self._processes)

    def show_processes(
        self, processes: Sequence[ProcessSnapshot], has_gpus: bool, note: str | None, width: int
    ) -> None:
        """Replace the rows; `note` is why they are not all."""
        rows: list[ListRow] = []
        found = arranged(processes, self.view)
        self._processes = {key_of(process): process for process, _ in found}
        if self._opened not in self._processes:
            self._opened = None
        for process, depth in found:
            key = key_of(process)
            rows.append(ListRow(key, process_line(process, has_gpus, width, self._glyphs, depth)))
            if key == self._opened:
                for number, line in enumerate(detail_lines(process, width)):
                    rows.append(ListRow((DETAIL, number), line))
        if not rows:
            text = note or ("no process passes the filter" if processes else "no process uses a GPU")
            words: Line = ((text, "dim"),)
            rows = [ListRow((DETAIL, 0), words)]
        self.fill(header_line(has_gpus, width), rows)

    def toggle_details(self) -> None:
        """Open the selected process, or close it."""
        process = self.selected
        key = None if process is None else key_of(process)
        self._opened = None if key == self._opened else key

    def move(self, step: int) -> None:
        """Move by rows, over those of details."""
        super().move(step)
        direction = 1 if step > 0 else -1
        while self.cursor not in self._processes and self._processes:
            before = self.cursor
            super().move(direction)
            if self.cursor == before:
                direction = -direction
