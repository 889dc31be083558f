"""Sends of a screen update only the columns that are to change, and of colours only those that differ from the last.

Textual's own update begins each changed line at its widget's left edge and resets the colours after every segment;
over a slow line that is most of what is sent. It also composes every widget around a change anew; lines of a widget
that lies open on the only screen are therefore written past it (`Brush`), which halves what a tick costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import COLOR_SYSTEMS, Console, ConsoleOptions, RenderResult
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate
from textual.app import App
from textual.errors import NoWidget
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

_MARK = "\0"
RESET = "\x1b[0m"


@lru_cache(maxsize=2048)
def _codes(style: Style, system: ColorSystem) -> tuple[str, str, str]:
    """Attributes, foreground and background as SGR parameters."""
    marked = style.without_color.render(_MARK, color_system=system).partition(_MARK)[0]
    attributes = marked.removeprefix("\x1b[").removesuffix("m")
    front, back = style.color, style.bgcolor
    return (
        attributes,
        "39" if front is None else ";".join(front.downgrade(system).get_ansi_codes()),
        "49" if back is None else ";".join(back.downgrade(system).get_ansi_codes(foreground=False)),
    )


class Pen:
    """Writes text; the colours are those in which it wrote last."""

    def __init__(self, console: Console) -> None:
        self._system = COLOR_SYSTEMS.get(console.color_system or "", ColorSystem.TRUECOLOR)
        self._now = ("", "", "")
        self.written: list[str] = []

    def go(self, x: int, y: int) -> None:
        self.written.append(f"\x1b[{y + 1};{x + 1}H")

    def write(self, text: str, style: Style | None) -> None:
        if style is not None:
            wanted = _codes(style, self._system)
            if wanted[0] != self._now[0] or not self._now[1]:
                self.written.append("\x1b[0;" + ";".join(filter(None, wanted)) + "m")
            elif wanted != self._now:
                changed = [new for new, old in zip(wanted[1:], self._now[1:], strict=True) if new != old]
                self.written.append("\x1b[" + ";".join(changed) + "m")
            self._now = wanted
        self.written.append(text)


def _write_part(pen: Pen, strip: Strip, begin: int, end: int) -> None:
    """Columns `begin` to `end` of a strip."""
    column = 0
    for segment in strip:
        text, style, _ = segment
        width = len(text) if text.isascii() else cell_len(text)
        next_column = column + width
        if next_column > begin:
            if column < begin or next_column > end:
                # A wide character that is cut in two becomes a blank.
                after = segment.split_cells(begin - column)[1] if column < begin else segment
                text = after.split_cells(end - max(column, begin))[0].text if next_column > end else after.text
            pen.write(text, style)
        if next_column >= end:
            return
        column = next_column


class ThriftyUpdate(CompositorUpdate):
    """The same changes as textual's."""

    def __init__(self, update: ChopsUpdate) -> None:
        self._update = update

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._update.__rich_console__(console, options)

    def render_segments(self, console: Console) -> str:
        """What the terminal is to be sent."""
        update = self._update
        pen = Pen(console)
        for y, begin, end in update.spans:
            at: int | None = None
            for last, (first, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
                left, right = max(first, begin), min(last, end)
                if strip is None or left >= right:
                    continue
                if at != left:
                    pen.go(left, y)
                _write_part(pen, strip, left - first, right - first)
                at = right
        return "".join(pen.written) + RESET


class Brush:
    """Writes lines of widgets to the terminal, all of one turn of the event loop at once."""

    def __init__(self, app: App[Any], write: Callable[[str], None]) -> None:
        """`write` takes what the terminal is to be sent."""
        self._app = app
        self._write = write
        self._pen: Pen | None = None

    def paint(self, widget: Widget, regions: Sequence[Region]) -> bool:
        """Draw regions of a widget's content, one row each; False where only textual knows what lies over them."""
        app = self._app
        if len(app.screen_stack) != 1 or app.is_headless or app._batch_count or app._notifications:
            return False
        screen = app.screen
        if widget.screen is not screen or screen._layout_required or screen._repaint_required:
            return False
        try:
            place = screen.find_widget(widget)
        except NoWidget:
            return False
        is_open = place.region.area > 0 and place.clip.intersection(place.region) == place.region
        if not is_open or widget.opacity != 1 or widget.styles.tint.a:
            return False
        if self._pen is None:
            self._pen = Pen(app.console)
            asyncio.get_running_loop().call_soon(self.flush)
        self._draw(self._pen, widget, regions)
        return True

    def flush(self) -> None:
        """Send what was painted."""
        if self._pen is not None:
            written, self._pen = self._pen.written, None
            self._write("".join(written) + RESET)

    def _draw(self, pen: Pen, widget: Widget, regions: Sequence[Region]) -> None:
        filters, background = widget.get_line_filters(), widget.background_colors[1]
        left, top = widget.content_region.offset
        strips: dict[int, Strip] = {}
        for x, y, width, _ in regions:
            if y not in strips:
                strip = widget.render_line(y)
                for line_filter in filters:
                    strip = strip.apply_filter(line_filter, background)
                strips[y] = strip
            pen.go(left + x, top + y)
            _write_part(pen, strips[y], x, x + width)
        # Textual keeps lines that it has drawn; these are others now.
        widget._styles_cache.set_dirty(*(region.translate(widget.content_offset) for region in regions))
