"""A list with a cursor that stays on its row, by key, however the rows are sorted anew."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from textual.message import Message
from textual.strip import Strip

from gputune_tui.tui.widgets.lines import Line, LineView


@dataclass(frozen=True)
class ListRow:
    """One row."""

    key: Hashable
    line: Line


class RowList(LineView):
    """A header and rows below it; the rows scroll, and the cursor is always in sight."""

    can_focus = True

    DEFAULT_CSS = """
    RowList { height: 1fr; }
    """

    class Moved(Message):
        """The cursor is on another row."""

        def __init__(self, sender: RowList) -> None:
            super().__init__()
            self.sender = sender

        @property
        def control(self) -> RowList:
            """Whose cursor it is."""
            return self.sender

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  # textual's name
        super().__init__(id=id)
        self._header: Line | None = None
        self._rows: list[ListRow] = []
        self._cursor: Hashable | None = None
        self._place = 0
        self._top = 0

    @property
    def cursor(self) -> Hashable | None:
        """Key of the selected row, None while there is none."""
        return self._cursor

    @property
    def rows(self) -> Sequence[ListRow]:
        """All rows."""
        return self._rows

    @property
    def visible_rows(self) -> int:
        """Rows that fit below the header."""
        return max(0, self.size.height - (self._header is not None))

    def fill(self, header: Line | None, rows: Sequence[ListRow]) -> None:
        """Replace header and rows. The cursor stays on its key; if that is gone, on its place."""
        taller = len(rows) != len(self._rows)
        self._header, self._rows = header, list(rows)
        keys = [row.key for row in self._rows]
        if self._cursor in keys:
            self._place = keys.index(self._cursor)
        else:
            self._place = max(0, min(self._place, len(keys) - 1))
            self._cursor = keys[self._place] if keys else None
        if taller and self.styles.is_auto_height:
            self.refresh(layout=True)
        self._layout_rows()

    def select(self, key: Hashable) -> None:
        """Put the cursor on a row, if it is there."""
        keys = [row.key for row in self._rows]
        if key in keys:
            self._go(keys.index(key))

    def move(self, step: int) -> None:
        """Move the cursor by rows, at most to an end."""
        if self._rows:
            self._go(max(0, min(self._place + step, len(self._rows) - 1)))

    def _go(self, place: int) -> None:
        if place != self._place or self._cursor != self._rows[place].key:
            self._place, self._cursor = place, self._rows[place].key
            self._layout_rows()
            self.post_message(self.Moved(self))

    def _layout_rows(self) -> None:
        room = max(1, self.visible_rows)
        self._top = max(0, min(self._top, len(self._rows) - room))
        if self._place < self._top:
            self._top = self._place
        elif self._place >= self._top + room:
            self._top = self._place - room + 1
        shown = [row.line for row in self._rows[self._top : self._top + room]]
        lines = ([self._header] if self._header is not None else []) + shown
        before = self._cursor_line
        self._cursor_line = self._place - self._top + (self._header is not None) if self._rows else None
        self.show(lines)
        if before != self._cursor_line:
            self._repaint([y for y in (before, self._cursor_line) if y is not None])

    _cursor_line: int | None = None

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        """As many rows as there are, whatever fits."""
        return max(1, len(self._rows) + (self._header is not None))

    def render_line(self, y: int) -> Strip:
        """One row, the selected one in reverse while this list has the focus."""
        line = self.lines[y] if 0 <= y < len(self.lines) else ()
        if y == self._cursor_line:
            return self.strip(line, "cursor" if self.has_focus else "strong")
        return self.strip(line, "dim" if y == 0 and self._header is not None else "")

    def on_resize(self) -> None:
        """More or fewer rows fit."""
        self._layout_rows()

    def on_focus(self) -> None:
        """The cursor looks different."""
        self.refresh()

    def on_blur(self) -> None:
        """The cursor looks different."""
        self.refresh()
