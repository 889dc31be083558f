"""The layout of the panels: every number of GPUs in every size has a place for all that must be in sight."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.tui.panel_layout import (
    FEW_PROCESS_ROWS,
    FRAME_COLUMNS,
    FRAME_ROWS,
    LEAST_COLUMNS,
    PROCESS_ROWS,
    Density,
    PanelLayout,
    panel_layout,
)

BARS = 2
"""Lines of a terminal above and below the panels."""


def check(found: PanelLayout, gpus: int, width: int, height: int) -> None:
    inner = width - (FRAME_COLUMNS if found.is_framed else 0)
    rows = found.gpu_rows + found.host_rows + found.process_rows
    assert rows + (FRAME_ROWS if found.is_framed else 0) == height
    assert min(found.gpu_rows, found.host_rows, found.process_rows, found.graph_rows, found.detail_rows) >= 0
    if gpus:
        assert found.columns * (found.column_width + 1) - 1 <= inner or found.density is Density.STRIP
        if found.density in LEAST_COLUMNS:
            assert found.column_width >= LEAST_COLUMNS[found.density]
        assert (found.graph_rows > 0) == (found.density is Density.CARD)


def lines_needed(found: PanelLayout, gpus: int) -> int:
    return -(-gpus // found.columns) * found.rows_per_gpu


def check_all(gpus: int, widths: Iterable[int], heights: Iterable[int]) -> None:
    for width, height in product(widths, heights):
        found = panel_layout(gpus, width, height, message_rows=3)
        check(found, gpus, width, height)
        assert found.gpu_rows >= lines_needed(found, gpus)
        assert found.host_rows >= 1
        assert found.process_rows >= PROCESS_ROWS


@pytest.mark.parametrize("gpus", [0, 1, 2, 3, 4, 8, 9, 16, 32, 64])
def test_every_gpu_and_six_processes_have_a_place(gpus: int) -> None:
    check_all(gpus, [*range(60, 130, 7), *range(130, 301, 34)], range(16 - BARS, 91 - BARS, 3))


@pytest.mark.slow  # a million sizes
@pytest.mark.parametrize("gpus", range(65))
def test_there_is_no_size_in_which_they_have_none(gpus: int) -> None:
    check_all(gpus, range(60, 301), range(16 - BARS, 91 - BARS))


@given(
    gpus=st.integers(0, 1000),
    width=st.integers(-3, 400),
    height=st.integers(-3, 200),
    details=st.integers(0, 30),
    message_rows=st.integers(1, 40),
)
def test_no_size_breaks_it(gpus: int, width: int, height: int, details: int, message_rows: int) -> None:
    found = panel_layout(gpus, width, height, details, message_rows)
    check(found, gpus, max(1, width), max(1, height))


@pytest.mark.parametrize(
    ("gpus", "width", "height", "density", "columns"),
    [
        (1, 80, 24, Density.CARD, 1),
        (4, 80, 24, Density.CARD, 2),
        (8, 80, 24, Density.ROW, 1),
        (16, 80, 24, Density.SHORT, 2),
        (1, 120, 40, Density.CARD, 1),
        (8, 120, 40, Density.CARD, 2),
        (16, 120, 40, Density.CARD, 3),
        (4, 200, 50, Density.CARD, 1),
        (8, 200, 50, Density.CARD, 2),
        (16, 200, 50, Density.CARD, 3),
        (64, 200, 50, Density.ROW, 2),
        (64, 60, 16, Density.STRIP, 15),
    ],
)
def test_the_sizes_that_are_met(gpus: int, width: int, height: int, density: Density, columns: int) -> None:
    found = panel_layout(gpus, width, height - BARS)
    assert (found.density, found.columns) == (density, columns)


@pytest.mark.parametrize("gpus", [1, 4, 8, 16])
def test_a_gpu_that_is_looked_at_makes_room_by_shrinking_the_rest(gpus: int) -> None:
    for width, height in ((80, 22), (120, 38), (200, 48)):
        found = panel_layout(gpus, width, height, details=4)
        check(found, gpus, width, height)
        assert found.detail_rows == 4
        assert found.gpu_rows >= lines_needed(found, gpus) + 4
        assert found.process_rows >= FEW_PROCESS_ROWS


def test_without_gpus_the_host_has_their_room() -> None:
    found = panel_layout(0, 120, 38, message_rows=3)
    assert found.gpu_rows == 3
    assert found.host_rows > 5
    assert found.process_rows > PROCESS_ROWS
