"""All GPUs side by side and below each other; the selected one opens in place."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import set_cell_size

from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.gpu_lines import Entry, entry_lines
from gputune_tui.tui.panel_layout import PanelLayout
from gputune_tui.tui.widgets.lines import Line, LineView, Span, clean, columns

GAP = " "


class GpuGrid(LineView):
    """Shows what the layout gives room to; with less it scrolls, the selected GPU always in sight."""

    can_focus = True

    DEFAULT_CSS = """
    GpuGrid:focus { border: round $primary; }
    """

    def __init__(self, glyphs: Glyphs, *, id: str) -> None:  # noqa: A002  # textual's name
        super().__init__(id=id)
        self._glyphs = glyphs
        self._count = 0
        self._columns = 1
        self._top = 0
        self.cursor = 0
        """Place of the selected entry."""

    def fill(self, entries: Sequence[Entry], layout: PanelLayout, opened: str | None, details: Sequence[Line]) -> None:
        """Show the entries; below the line of the one whose place is `opened` stand the details."""
        self._count, self._columns = len(entries), layout.columns
        self.cursor = max(0, min(self.cursor, self._count - 1))
        lines: list[Line] = []
        for first in range(0, len(entries), layout.columns):
            some = entries[first : first + layout.columns]
            begin = len(lines)
            lines += beside([entry_lines(entry, layout, self._glyphs) for entry in some], layout)
            has_details = any(entry.place == opened for entry in some)
            if has_details:
                lines += details[: layout.detail_rows]
            if first <= self.cursor < first + layout.columns:
                selected = (begin, len(lines))
        self._scroll(len(lines), layout.gpu_rows, selected if entries else (0, 0))
        self.show(lines[self._top : self._top + layout.gpu_rows])

    def say(self, lines: Sequence[Line]) -> None:
        """Show words instead of GPUs."""
        self._count, self._top = 0, 0
        self.show(lines)

    def move(self, rows: int, columns: int = 0) -> bool:
        """Select another; whether there is one."""
        place = max(0, min(self.cursor + rows * self._columns + columns, self._count - 1))
        moved = place != self.cursor
        self.cursor = place
        return moved

    def _scroll(self, lines: int, room: int, selected: tuple[int, int]) -> None:
        begin, end = selected
        self._top = max(0, min(self._top, lines - room))
        if end > self._top + room:
            self._top = end - room
        self._top = max(0, min(self._top, begin))


def beside(blocks: Sequence[Sequence[Line]], layout: PanelLayout) -> list[Line]:
    """Blocks next to each other, each in the layout's width and height."""
    lines: list[Line] = []
    for y in range(layout.rows_per_gpu):
        spans: list[Span] = []
        for place, block in enumerate(blocks):
            line = block[y] if y < len(block) else ()
            is_last = place == len(blocks) - 1
            spans += in_width(line, layout.column_width)
            if not is_last and layout.column_width > 4:
                spans.append((GAP, ""))
        lines.append(tuple(spans))
    return lines


def in_width(line: Line, width: int) -> list[Span]:
    """The line cut or padded to so many columns."""
    spans: list[Span] = []
    left = width
    for text, kind in line:
        if left <= 0:
            break
        shown = clean(text)
        size = columns(shown)
        if size > left:
            shown, size = set_cell_size(shown, left), left
        spans.append((shown, kind))
        left -= size
    if left > 0 and spans and not spans[-1][1]:
        spans[-1] = (spans[-1][0] + " " * left, "")
    elif left > 0:
        spans.append((" " * left, ""))
    return spans
