"""Histories: gaps stay gaps, series stay aligned, nothing grows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.telemetry.history import History


def test_a_gap_is_a_gap() -> None:
    history = History(4)
    for value in (1.0, None, 0.0, math.nan):
        history.push({"util": value})
    assert history.last("util") == (1.0, None, 0.0, None)
    assert history.last("util", 2) == (0.0, None)
    assert history.last("util", 0) == history.last("nothing") == ()


def test_a_name_that_comes_later_is_aligned_and_one_that_left_is_forgotten() -> None:
    history = History(3)
    history.push({"a": 1.0})
    history.push({"a": 2.0, "b": 9.0})
    assert history.last("b") == (None, 9.0)
    for tick in range(3):
        history.push({"a": float(tick)})
    assert history.last("b") == ()
    assert history.last("a") == (0.0, 1.0, 2.0)


def test_a_history_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        History(0)


@given(
    capacity=st.integers(1, 8),
    ticks=st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.floats(0, 1)), max_size=30),
)
def test_the_newest_values_of_every_series_line_up(capacity: int, ticks: list[dict[str, float | None]]) -> None:
    history = History(capacity)
    for tick in ticks:
        history.push(tick)
    for name in "abc":
        kept = history.last(name)
        assert len(kept) in (0, min(len(ticks), capacity))
        expected = tuple(tick.get(name) for tick in ticks[-len(kept) :]) if kept else ()
        assert kept == expected
        if not kept:
            assert not any(tick.get(name) is not None for tick in ticks[-capacity:])
