"""Graphs of several rows between fixed bounds, 0 and 1: braille with two values a column, or ASCII with one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from gputune_tui.tui.glyphs import Glyphs

BRAILLE = 0x2800
_LEFT = (0, 0x40, 0x44, 0x46, 0x47)
_RIGHT = (0, 0x80, 0xA0, 0xB0, 0xB8)
"""So many dots of one half column, from the bottom up (Unicode chart U2800)."""
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
    dots = _dots(_largest(values, first - (taken - len(values)), width * halves, zoom), height, glyphs)
    if glyphs.braille:
        columns = [_braille_column(left, right, height) for left, right in zip(dots[::2], dots[1::2], strict=True)]
    else:
        columns = [_ascii_column(level, height, glyphs.levels) for level in dots]
    rows = ["".join(row) for row in zip(*columns, strict=True)]
    for number, sign in (marks or {}).items():
        column = number // per_column - (last_column - width + 1)
        if 0 <= column < width:
            rows[0] = rows[0][:column] + sign + rows[0][column + 1 :]
    return rows


def _largest(values: Sequence[float | None], begin: int, count: int, zoom: int) -> list[float | None]:
    """`count` groups of `zoom` values from `begin` on; what was before is unknown, what is to come as it is now.

    A column is thus whole from the start, and a value that stays the same changes nothing.
    """
    size = count * zoom
    inside = list(values[max(0, begin) : max(0, begin + size)])
    padded: list[float | None] = [None] * min(size, max(0, -begin))
    padded += inside
    padded += [values[-1] if values else None] * (size - len(padded))
    if zoom == 1:
        return padded
    groups = [[v for v in padded[place : place + zoom] if v is not None] for place in range(0, size, zoom)]
    return [max(group) if group else None for group in groups]


def _dots(levels: Sequence[float | None], height: int, glyphs: Glyphs) -> list[int]:
    """How many steps are filled. What is known has one at least, so that idle differs from unknown."""
    top = height * (DOTS if glyphs.braille else len(glyphs.levels))
    return [
        0 if level is None or not math.isfinite(level) else max(1, round(min(1.0, max(0.0, level)) * top))
        for level in levels
    ]


@lru_cache(maxsize=4096)
def _braille_column(left: int, right: int, height: int) -> tuple[str, ...]:
    """From the top."""
    cells = []
    for below in range((height - 1) * DOTS, -1, -DOTS):
        bits = _LEFT[min(DOTS, max(0, left - below))] | _RIGHT[min(DOTS, max(0, right - below))]
        cells.append(chr(BRAILLE | bits) if bits else " ")
    return tuple(cells)


@lru_cache(maxsize=4096)
def _ascii_column(level: int, height: int, levels: str) -> tuple[str, ...]:
    """From the top."""
    steps = len(levels)
    filled = [min(steps, max(0, level - below)) for below in range((height - 1) * steps, -1, -steps)]
    return tuple(levels[step - 1] if step else " " for step in filled)
