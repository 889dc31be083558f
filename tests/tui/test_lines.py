"""Text of any origin takes exactly its cells, and nothing in it is obeyed."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gputune_tui.tui.widgets.lines import CUT, clean, fitted, hanging, wrapped
from tests.tui import hostile

widths = st.integers(0, 250)
IDS = [ascii(text)[:20] for text in hostile.ALL]


@pytest.mark.parametrize("text", hostile.ALL, ids=IDS)
def test_hostile_text_is_fitted(text: str) -> None:
    for width in (0, 1, 2, 3, 10, 79, 250):
        for right in (False, True):
            shown = fitted(text, width, right)
            assert cell_len(shown) == width
            assert hostile.harmless(shown)


@settings(max_examples=100)
@given(text=hostile.texts, width=widths, right=st.booleans())
def test_any_text_is_fitted(text: str, width: int, right: bool) -> None:
    shown = fitted(text, width, right)
    assert cell_len(shown) == width
    assert hostile.harmless(shown)


@settings(max_examples=100)
@given(text=hostile.texts, width=widths, most=st.none() | st.integers(1, 4))
def test_any_text_is_wrapped(text: str, width: int, most: int | None) -> None:
    lines = wrapped(text, width, "warn", most)
    assert 1 <= len(lines) <= (most or 1 << 30)
    for line in lines:
        shown = "".join(part for part, _ in line)
        assert cell_len(shown) <= max(2, width)
        assert hostile.harmless(shown)
        assert {kind for _, kind in line} == {"warn"}


def test_what_is_wrapped_is_there_in_full() -> None:
    sentence = "No NVIDIA GPU: libnvidia-ml.so.1 not found. Trials run on the CPU."
    for width in range(20, 90):
        assert " ".join(line[0][0] for line in wrapped(sentence, width)) == sentence


def test_a_last_column_is_wrapped_below_its_beginning() -> None:
    lines = hanging((("key ", "accent"), ("a b c d", "dim")), 7)
    assert lines == [(("key ", "accent"), ("a b", "dim")), (("    ", ""), ("c d", "dim"))]
    assert hanging((("alone", ""),), 9) == [(("alone", ""),)]
    assert len(hanging((("key", ""), ("text", "")), 0)) == 2


def test_wide_text_is_wrapped_by_cells() -> None:
    lines = wrapped("訓練" * 20, 20)
    assert "".join(line[0][0] for line in lines) == "訓練" * 20
    assert all(cell_len(line[0][0]) <= 20 for line in lines)


def test_what_is_left_out_is_seen_to_be() -> None:
    (first, second) = wrapped("word " * 100, 40, most=2)
    assert second[0][0].endswith(CUT)
    assert not first[0][0].endswith(CUT)


def test_brackets_stay_and_commands_are_replaced() -> None:
    assert clean(hostile.MARKUP) == hostile.MARKUP
    assert clean("a\x1b[31mb") == "a\ufffd[31mb"
    assert clean("\udcff\u202e\x9b") == "\ufffd\ufffd\ufffd"


def test_a_megabyte_costs_no_more_than_what_is_shown() -> None:
    began_s = time.process_time()
    for _ in range(50):
        fitted(hostile.LONG, 80)
        wrapped(hostile.LONG, 80, most=2)
    # Measured cell by cell this takes a minute.
    assert time.process_time() - began_s < 10
