"""Graphs of several rows between fixed bounds, 0 and 1: braille with two values a column, or ASCII with one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gputune_tui.tui.glyphs import Glyphs

BRAILLE = 0x2800
_LEFT = (0x40, 0x44, 0x46, 0x47)
_RIGHT = (0x80, 0xA0, 0xB0, 0xB8)
"""Dots of one half column from the bottom up (Unicode chart U2800)."""
DOTS = 4
Marks = Mapping[int, str]
"""Signs by the number of the value at which they stand."""


def values_per_column(glyphs: Glyphs, zoom: int) -> int:
    """How many values share a column; `zoom` of them are one dot."""
    return zoom * (2 if glyphs.braille else 1)


def graph_rows(
    values: Sequence[float | None],
    taken: int,
    width: int,
    height: int,
    glyphs: Glyphs,
    zoom: int = 1,
    marks: Marks | None = None,
) -> list[str]:
    """Rows from the top, each `width` columns.

    A value keeps its place in its column whatever comes after it, so that the graph moves only when a column is full.

    Args:
        values: fractions, newest last; None is a gap.
        taken: how many values there have ever been: the newest is number `taken` - 1.
        width, height: columns and rows.
        glyphs: decides between braille and ASCII.
        zoom: values of which the largest is drawn.
        marks: signs for the top row, by the number of the value.
    """
    if width <= 0 or height <= 0:
        return [""] * max(0, height)
    halves = 2 if glyphs.braille else 1
    per_column = zoom * halves
    last_column = max(0, taken - 1) // per_column
    first = (last_column - width + 1) * per_column
    oldest = taken - len(values)
    levels = [_largest(values, first + part * zoom - oldest, zoom) for part in range(width * halves)]
    rows = [_row(levels, height - 1 - y, height, glyphs) for y in range(height)]
    for number, sign in (marks or {}).items():
        column = number // per_column - (last_column - width + 1)
        if 0 <= column < width:
            rows[0] = rows[0][:column] + sign + rows[0][column + 1 :]
    return rows


def _largest(values: Sequence[float | None], begin: int, count: int) -> float | None:
    known = [
        value
        for place in range(max(0, begin), min(len(values), begin + count))
        if (value := values[place]) is not None and math.isfinite(value)
    ]
    return min(1.0, max(0.0, max(known))) if known else None


def _row(levels: Sequence[float | None], row: int, height: int, glyphs: Glyphs) -> str:
    """One row, counted from the bottom."""
    if not glyphs.braille:
        return "".join(_ascii_cell(level, row, height, glyphs) for level in levels)
    dots = [_dots(level, row, height) for level in levels]
    cells = []
    for left, right in zip(dots[::2], dots[1::2], strict=True):
        bits = (_LEFT[left - 1] if left else 0) | (_RIGHT[right - 1] if right else 0)
        cells.append(chr(BRAILLE | bits) if bits else " ")
    return "".join(cells)


def _dots(level: float | None, row: int, height: int) -> int:
    """Dots of a half column in this row. What is known has one at least, so that idle differs from unknown."""
    if level is None:
        return 0
    filled = max(1, round(level * height * DOTS))
    return min(DOTS, max(0, filled - row * DOTS))


def _ascii_cell(level: float | None, row: int, height: int, glyphs: Glyphs) -> str:
    if level is None:
        return " "
    steps = len(glyphs.levels)
    filled = max(1, round(level * height * steps))
    step = min(steps, max(0, filled - row * steps))
    return glyphs.levels[step - 1] if step else " "
