"""A panel of text lines that repaints only those that changed; what it is given is shown as it is, never as markup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.content import Content
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gputune_tui.text import printable

Span = tuple[str, str]
"""Text and what it means: "" plain, or one of `KINDS`."""
Line = tuple[Span, ...]

KINDS = ("dim", "good", "warn", "bad", "accent", "strong", "cursor")
SHOWN_CHARACTERS = 2000
"""More of one span is never on a screen; megabytes must not be measured cell by cell."""
CUT = " ..."
"""Stands where the rest of a text is left out."""


def plain(text: str) -> Line:
    """A line of one span."""
    return ((text, ""),)


def clean(text: str) -> str:
    """What can be shown of a text of any origin."""
    return printable(text[:SHOWN_CHARACTERS])


def columns(text: str) -> int:
    """Columns that a text takes."""
    return len(text) if text.isascii() else cell_len(text)


@runtime_checkable
class Painter(Protocol):
    """A program that can draw a widget's lines by itself."""

    def paint(self, widget: Widget, regions: Sequence[Region]) -> bool:
        """Draw regions of its content; whether it has."""


class LineView(Widget):
    """Shows lines from its top; those that do not fit are left out."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"lines--{kind}" for kind in KINDS}
    DEFAULT_CSS = """
    LineView {
        height: auto;
        &> .lines--dim { color: $text-muted; }
        &> .lines--good { color: $text-success; }
        &> .lines--warn { color: $text-warning; }
        &> .lines--bad { color: $text-error; }
        &> .lines--accent { color: $text-primary; }
        &> .lines--strong { text-style: bold; }
        &> .lines--cursor { text-style: reverse; }
    }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002  # textual's name
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = []
        self._styles: dict[tuple[str, ...], Style] = {}
        self._subtitle = ""
        self._title = ""

    @property
    def lines(self) -> Sequence[Line]:
        """What is shown."""
        return self._lines

    def show(self, lines: Sequence[Line]) -> None:
        """Replace the lines; repaints those that differ, lays out anew only if their number changed."""
        before, self._lines = self._lines, list(lines)
        if len(before) > len(self._lines):
            self.refresh()
        if len(before) != len(self._lines) and self.styles.is_auto_height:
            self.refresh(layout=True)
        regions: list[Region] = []
        for y, line in enumerate(self._lines[: self.size.height]):
            if y >= len(before):
                regions.append(Region(0, y, self.size.width, 1))
            elif before[y] != line:
                spans = changed_columns(before[y], line) or [(0, self.size.width)]
                regions += [Region(begin, y, end - begin, 1) for begin, end in spans]
        if regions and not self._is_painted(regions):
            self.refresh(*regions)

    def _is_painted(self, regions: Sequence[Region]) -> bool:
        """Whether the program could draw them past textual."""
        app = self.app
        return isinstance(app, Painter) and app.paint(self, regions)

    def name_panel(self, title: str, subtitle: str = "") -> None:
        """Set the border's title and the value at its end."""
        if title != self._title:
            self._title = title
            self.border_title = Content(clean(title))
        if subtitle != self._subtitle:
            self._subtitle = subtitle
            self.border_subtitle = Content(clean(subtitle))

    def _repaint(self, indices: Sequence[int]) -> None:
        regions = [Region(0, y, self.size.width, 1) for y in indices if y < self.size.height]
        if regions:
            self.refresh(*regions)

    def notify_style_update(self) -> None:
        """Colours may be others."""
        super().notify_style_update()
        self._styles.clear()

    def _style(self, *kinds: str) -> Style:
        """Of these kinds, one over the other."""
        found = self._styles.get(kinds)
        if found is None:
            found = self.rich_style
            for kind in filter(None, kinds):
                found += self.get_component_rich_style(f"lines--{kind}", partial=True)
            self._styles[kinds] = found
        return found

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        """As many rows as there are lines."""
        return max(1, len(self._lines))

    def render_line(self, y: int) -> Strip:
        """One row."""
        line = self._lines[y] if 0 <= y < len(self._lines) else ()
        return self.strip(line)

    def strip(self, line: Line, kind: str = "") -> Strip:
        """A line in this panel's width and colours; `kind` goes over all of it."""
        width = self.size.width
        base = self._style(kind)
        segments, used = [], 0
        for text, meaning in line:
            shown = clean(text)
            room = width - used
            if room <= 0:
                break
            size = columns(shown)
            if size > room:
                shown, size = set_cell_size(shown, room), room
            used += size
            segments.append(Segment(shown, self._style(kind, meaning)))
        return Strip(segments, used).adjust_cell_length(width, base)


JOINED_COLUMNS = 10
"""To move the cursor and set colours anew costs as much as so many columns that did not change."""


def changed_columns(before: Line, after: Line) -> list[tuple[int, int]] | None:
    """Where two lines differ: first column and the one after the last; None where characters are not a column each."""
    if len(before) != len(after) or any(len(a[0]) != len(b[0]) for a, b in zip(before, after, strict=True)):
        before, after = _cells(before), _cells(after)
        size = max(len(before), len(after))
        before += ((" ", ""),) * (size - len(before))
        after += ((" ", ""),) * (size - len(after))
    spans: list[tuple[int, int]] = []
    column = 0
    for (old, old_kind), (new, new_kind) in zip(before, after, strict=True):
        if not _is_even(old) or not _is_even(new):
            return None
        if old_kind != new_kind:
            if new:
                _join(spans, column, column + len(new))
        elif old != new:
            for place, (a, b) in enumerate(zip(old, new, strict=True), column):
                if a != b:
                    _join(spans, place, place + 1)
        column += len(new)
    return spans


def _join(spans: list[tuple[int, int]], begin: int, end: int) -> None:
    if spans and begin - spans[-1][1] < JOINED_COLUMNS:
        spans[-1] = (spans[-1][0], end)
    else:
        spans.append((begin, end))


def _cells(line: Line) -> Line:
    """Each character on its own."""
    return tuple((character, kind) for text, kind in line for character in text[:SHOWN_CHARACTERS])


def _is_even(text: str) -> bool:
    """Whether each character takes one column."""
    return columns(text) == len(text)


def wrapped(text: str, width: int, kind: str = "", most: int | None = None) -> list[Line]:
    """The text in as many lines as it needs, at most `most`; broken between words where it can be."""
    width = max(2, width)  # a wide character has to find room
    lines: list[str] = []
    for word in clean(text).split(" "):
        pieces = chop_cells(word, width) or [word]
        if lines and len(pieces) == 1 and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += " " + word
        elif word or not lines:
            lines += pieces
    if most is not None and len(lines) > most:
        room = max(0, width - len(CUT))
        last = lines[most - 1]
        lines = [
            *lines[: most - 1],
            (set_cell_size(last, room).rstrip() if cell_len(last) > room else last) + CUT[-width:],
        ]
    return [((line, kind),) for line in lines]


def hanging(line: Line, width: int) -> list[Line]:
    """A line whose last span is wrapped; what goes on stands below its beginning."""
    *head, (text, kind) = line
    indent = sum(cell_len(clean(before)) for before, _ in head)
    first, *rest = wrapped(text, width - indent, kind)
    return [(*head, *first), *[((" " * indent, ""), *more) for more in rest]]


def fitted(text: str, width: int, right: bool = False) -> str:
    """The text in exactly `width` columns, cut or padded."""
    text = clean(text)
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width)
    return " " * (width - size) + text if right else text + " " * (width - size)
