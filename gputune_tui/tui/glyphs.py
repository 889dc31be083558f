"""Bars, graphs and marks as text, in Unicode or ASCII."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Glyphs:
    """One set of characters."""

    eighths: str
    """From one eighth to full, left to right."""
    levels: str
    """From lowest to highest, for graphs of one row."""
    bar_ends: tuple[str, str]
    mark: str
    """The budget on a memory bar."""
    cursor: str
    interval: tuple[str, str, str, str]
    """Left end, line, right end, centre."""
    missing: str = " "
    braille: bool = False
    """Whether graphs of several rows may use braille."""
    ticks: tuple[str, str] = ("[", "]")
    """Where a trial started and ended, on graphs."""

    def bar(self, fraction: float | None, width: int, mark: float | None = None) -> str:
        """A bar of `width` columns, its ends included; with `mark` a sign at that fraction. Unknown is empty."""
        if width < 2:
            return " " * max(0, width)
        inner = width - 2
        known = fraction is not None and math.isfinite(fraction)
        filled = _within(fraction) * inner if known and fraction is not None else 0.0
        full, rest = int(filled), filled - int(filled)
        steps = len(self.eighths)
        partial = int(rest * steps)
        cells = list(self.eighths[-1] * full)
        if partial and full < inner:
            cells.append(self.eighths[partial - 1])
        cells += [" "] * (inner - len(cells))
        if mark is not None and inner and 0 <= mark <= 1:
            place = min(inner - 1, int(mark * inner))
            if cells[place] == " ":
                cells[place] = self.mark
        return self.bar_ends[0] + "".join(cells) + self.bar_ends[1]

    def graph(self, values: Sequence[float | None], width: int) -> str:
        """The newest `width` fractions (0 to 1), one column each; a gap where a value is missing."""
        newest = list(values)[-width:] if width > 0 else []
        top = len(self.levels) - 1
        cells = [
            self.missing if value is None or not math.isfinite(value) else self.levels[round(_within(value) * top)]
            for value in newest
        ]
        return "".join(cells).rjust(max(0, width))

    def span(self, low: float, value: float, high: float, width: int, bounds: tuple[float, float]) -> str:
        """An interval drawn within bounds; blank where a number is none or the bounds hold nothing."""
        left, line, right, centre = self.interval
        first, last = bounds
        if width < 3 or not last > first or not all(map(math.isfinite, (low, value, high, last - first))):
            return " " * max(0, width)

        def place(x: float) -> int:
            return round((min(last, max(first, x)) - first) / (last - first) * (width - 1))

        cells = [" "] * width
        for index in range(place(low), place(high) + 1):
            cells[index] = line
        cells[place(low)], cells[place(high)] = left, right
        cells[place(value)] = centre
        return "".join(cells)


def _within(fraction: float) -> float:
    return min(1.0, max(0.0, fraction))


UNICODE = Glyphs("▏▎▍▌▋▊▉█", "▁▂▃▄▅▆▇█", ("▕", "▏"), "┊", "▸", ("├", "─", "┤", "●"), braille=True, ticks=("╟", "╢"))
ASCII = Glyphs("#", ".:-=+*#", ("[", "]"), "|", ">", ("|", "-", "|", "o"))
