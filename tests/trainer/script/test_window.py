"""Which iteration of a script is an update, and how much its loss counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.trainer.script.window import Window


def run_epoch(window: Window, sizes: list[int]) -> list[tuple[float, bool]]:
    window.begin_epoch(sizes)
    seen = []
    for _ in sizes:
        share = window.share
        seen.append((share, window.step()))
    window.end_epoch()
    return seen


def test_equal_batches() -> None:
    assert run_epoch(Window(2), [4, 4, 4, 4]) == [(0.5, False), (0.5, True), (0.5, False), (0.5, True)]


def test_the_last_window_of_an_epoch_is_weighted_by_its_own_samples() -> None:
    assert run_epoch(Window(4), [4, 4, 4, 4, 4, 2]) == [
        (0.25, False), (0.25, False), (0.25, False), (0.25, True), (4 / 6, False), (2 / 6, True)
    ]  # fmt: skip


@given(st.integers(1, 6), st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_shares_of_a_window_sum_to_one_and_every_epoch_ends_with_an_update(parts: int, sizes: list[int]) -> None:
    window = Window(parts)
    for _ in range(2):
        total = 0.0
        for share, updates in run_epoch(window, sizes):
            total += share
            if updates:
                assert total == pytest.approx(1.0)
                total = 0.0
        assert total == 0.0
        assert not window.has_held_step


def test_an_epoch_that_was_broken_off_is_known() -> None:
    window = Window(2)
    window.begin_epoch([4, 4, 4])
    seen = [window.was_broken_off]
    window.step()
    assert window.has_held_step
    assert [*seen, window.was_broken_off] == [False, True]
    window.begin_epoch([4, 4, 4])
    assert (window.share, window.is_last) == (0.5, False)


def test_batches_without_a_step_are_known() -> None:
    window = Window(2)
    window.begin_epoch([4, 4, 4])
    window.step()
    window.end_epoch()
    assert window.is_out_of_step
    run_epoch(window, [4, 4])
    assert not window.is_out_of_step


def test_without_a_loader_windows_go_on_for_ever() -> None:
    window = Window(3)
    assert [window.step() for _ in range(7)] == [False, False, True, False, False, True, False]


def test_steps_beyond_the_epoch_count_alike() -> None:
    window = Window(2)
    run_epoch(window, [4])
    assert window.is_beyond_epoch
    assert window.share == 0.5
