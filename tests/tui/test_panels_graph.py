"""Graphs of several rows: fixed bounds, gaps for the unknown, and columns that stay where they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.tui.glyphs import ASCII, UNICODE, Glyphs
from gputune_tui.tui.graph import graph_rows, values_per_column
from gputune_tui.tui.widgets.lines import changed_columns

values = st.lists(st.none() | st.floats(), max_size=80)


@given(
    series=values,
    before=st.integers(0, 1000),
    width=st.integers(0, 60),
    height=st.integers(0, 6),
    zoom=st.sampled_from([1, 4, 16]),
    glyphs=st.sampled_from([UNICODE, ASCII]),
)
def test_every_graph_has_its_size(
    series: list[float | None], before: int, width: int, height: int, zoom: int, glyphs: Glyphs
) -> None:
    taken = len(series) + before
    rows = graph_rows(series, taken, width, height, glyphs, zoom, {taken - 1: "!", -5: "!", taken + 99: "!"})
    assert [len(row) for row in rows] == [width] * height


@given(series=st.lists(st.floats(0, 1), min_size=1, max_size=79), new=st.floats(0, 1), taken=st.integers(0, 9))
def test_a_column_that_is_full_does_not_change_any_more(series: list[float], new: float, taken: int) -> None:
    total = taken + len(series)
    width, per = 20, values_per_column(UNICODE, 1)
    known: list[float | None] = [*series]
    before = graph_rows(known, total, width, 2, UNICODE)
    after = graph_rows([*known, new], total + 1, width, 2, UNICODE)
    shift = 1 if total % per == 0 else 0
    for old, now in zip(before, after, strict=True):
        assert old[shift : width - 1] == now[: width - 1 - shift]


def test_full_is_full_and_nothing_is_blank() -> None:
    assert graph_rows([1.0, 1.0], 2, 1, 2, UNICODE) == ["⣿", "⣿"]
    assert graph_rows([0.0, 0.0], 2, 1, 2, UNICODE) == [" ", "⣀"]
    assert graph_rows([0.5, None], 2, 1, 2, UNICODE) == [" ", "⡇"]
    assert graph_rows([None, None], 2, 1, 2, UNICODE) == [" ", " "]
    assert graph_rows([7.0, -7.0], 2, 1, 1, UNICODE) == ["⣇"]
    assert graph_rows([1.0], 1, 1, 2, ASCII) == ["#", "#"]
    assert graph_rows([0.0], 1, 1, 2, ASCII) == [" ", "."]


def test_a_gap_is_a_gap() -> None:
    (row,) = graph_rows([1.0, 1.0, None, None, math.nan, math.nan, 1.0, 1.0], 8, 4, 1, UNICODE)
    assert row == "⣿  ⣿"


def test_zoomed_out_the_largest_counts() -> None:
    (row,) = graph_rows([0.0, 0.0, 1.0, 0.0] * 2, 8, 1, 1, UNICODE, zoom=4)
    assert row == "⣿"


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_marks_stand_at_their_value(glyphs: Glyphs) -> None:
    per = values_per_column(glyphs, 1)
    top, bottom = graph_rows([0.1] * 20 * per, 20 * per, 20, 2, glyphs, 1, {5 * per: "╟", 12 * per: "╢"})
    assert (top.index("╟"), top.index("╢")) == (5, 12)
    assert "╟" not in bottom


@given(
    old=st.lists(st.tuples(st.text("ab 漢█", max_size=6), st.sampled_from(["", "good"])), max_size=4),
    new=st.lists(st.tuples(st.text("ab 漢█", max_size=6), st.sampled_from(["", "good"])), max_size=4),
)
def test_what_changed_covers_every_difference(old: list[tuple[str, str]], new: list[tuple[str, str]]) -> None:
    spans = changed_columns(tuple(old), tuple(new))
    if spans is None:
        assert any("漢" in text for text, _ in (*old, *new))
        return
    cells = [[(c, kind) for text, kind in line for c in text] for line in (old, new)]
    size = max(map(len, cells))
    a, b = ([*line, *[(" ", "")] * (size - len(line))] for line in cells)
    for column in range(size):
        if a[column] != b[column]:
            assert any(begin <= column < end for begin, end in spans)
    assert all(0 <= begin < end <= size for begin, end in spans)
