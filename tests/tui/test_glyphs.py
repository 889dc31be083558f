"""Bars, graphs and intervals: whatever the number, they take the columns they were given."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gputune_tui.tui.glyphs import ASCII, UNICODE, Glyphs

SETS = pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
WIDTHS = range(201)
ODD = (None, 0.0, -0.0, 0.5, 1.0, 1.5, -3.0, 1e300, -1e300, 5e-324, math.nan, math.inf, -math.inf)
fractions = st.none() | st.floats() | st.sampled_from(ODD)
numbers = st.floats() | st.sampled_from([number for number in ODD if number is not None])


@SETS
def test_bars_have_their_width(glyphs: Glyphs) -> None:
    for width in WIDTHS:
        for number, fraction in enumerate(ODD):
            for mark in (None, ODD[-1 - number], 0.5):
                assert cell_len(glyphs.bar(fraction, width, mark)) == width


@SETS
@settings(max_examples=30)
@given(fraction=fractions, width=st.integers(-2, 200), mark=fractions)
def test_bars_of_any_number(glyphs: Glyphs, fraction: float | None, width: int, mark: float | None) -> None:
    assert cell_len(glyphs.bar(fraction, width, mark)) == max(0, width)


@SETS
@settings(max_examples=30)
@given(values=st.lists(fractions, max_size=30), width=st.integers(-2, 200))
def test_graphs_of_any_numbers(glyphs: Glyphs, values: list[float | None], width: int) -> None:
    drawn = glyphs.graph(values, width)
    assert cell_len(drawn) == max(0, width)
    for shown, value in zip(drawn[::-1], values[::-1], strict=False):
        assert (shown == glyphs.missing) == (value is None or not math.isfinite(value))


@SETS
@settings(max_examples=40)
@given(numbers, numbers, numbers, st.integers(-2, 200), st.tuples(numbers, numbers))
def test_intervals_of_any_numbers(
    glyphs: Glyphs, low: float, value: float, high: float, width: int, bounds: tuple[float, float]
) -> None:
    assert cell_len(glyphs.span(low, value, high, width, bounds)) == max(0, width)


@SETS
def test_intervals_have_their_width(glyphs: Glyphs) -> None:
    for width in WIDTHS:
        assert cell_len(glyphs.span(0.9, 1.0, 1.2, width, (0.5, 1.5))) == width


@SETS
def test_unknown_is_empty_and_never_zero(glyphs: Glyphs) -> None:
    for unknown in (None, math.nan):
        assert glyphs.bar(unknown, 12).strip("".join(glyphs.bar_ends)).strip() == ""
        assert glyphs.graph([unknown, 0.0], 2) == glyphs.missing + glyphs.levels[0]


@SETS
def test_a_bar_grows_with_its_number(glyphs: Glyphs) -> None:
    ranks = {" ": 0, **{cell: number + 1 for number, cell in enumerate(glyphs.eighths)}}
    inner = [glyphs.bar(number / 100, 22)[1:-1] for number in range(101)]
    filled = [[ranks[cell] for cell in bar] for bar in inner]
    assert filled == sorted(filled)
    assert inner[0] == " " * 20
    assert inner[100] == glyphs.eighths[-1] * 20


@SETS
def test_the_mark_stands_at_its_place_and_hides_no_bar(glyphs: Glyphs) -> None:
    assert glyphs.bar(0.1, 22, 0.5)[1:-1].index(glyphs.mark) == 10
    assert glyphs.bar(0.1, 22, 1.0)[1:-1].index(glyphs.mark) == 19
    assert glyphs.mark not in glyphs.bar(1.0, 22, 0.5)
    assert glyphs.mark not in glyphs.bar(0.1, 22, 1.2)


@SETS
def test_an_interval_has_its_ends_and_its_centre_in_order(glyphs: Glyphs) -> None:
    left, line, right, centre = glyphs.interval
    drawn = glyphs.span(0.8, 1.0, 1.3, 21, (0.0, 2.0))
    assert drawn.strip() == left + line + centre + line * 2 + right
    assert drawn.index(centre) == 10


def test_the_ascii_set_is_ascii() -> None:
    assert repr(ASCII).isascii()
