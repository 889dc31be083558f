"""Feasibility for any budget, and the smallest peak that was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import FailureReason, Trial, TrialState
from gputune_tui.ranking.feasibility import is_feasible, smallest_peak
from gputune_tui.ranking.leaderboard import leaderboard
from tests.ranking.make import MIB, complete, failed, launch


@pytest.mark.parametrize(
    ("peak", "budget", "expected"),
    [(100, 101, True), (100, 100, True), (101, 100, False), (None, 100, None)],
)
def test_a_complete_trial_is_held_to_its_peak(peak: int | None, budget: int, expected: bool | None) -> None:
    assert is_feasible(complete(1, launch(5.0, peak=peak)), MemoryBudget(budget)) is expected


def test_the_largest_launch_counts() -> None:
    assert is_feasible(complete(1, launch(5.0, peak=90), launch(5.0, peak=110)), MemoryBudget(100)) is False


@pytest.mark.parametrize(
    ("host_peak", "host_budget", "expected"),
    [(50, None, True), (None, None, True), (50, 60, True), (61, 60, False), (None, 60, None)],
)
def test_the_host_budget_counts_where_there_is_one(
    host_peak: int | None, host_budget: int | None, expected: bool | None
) -> None:
    trial = complete(1, launch(5.0, peak=100, host_peak=host_peak))
    assert is_feasible(trial, MemoryBudget(100, host_budget)) is expected


@pytest.mark.parametrize("reason", [FailureReason.OVER_BUDGET, FailureReason.DEVICE_OOM])
def test_a_trial_that_ran_out_does_not_fit_its_cap_but_may_fit_more(reason: FailureReason) -> None:
    trial = failed(1, reason, seen=80, cap=100)
    assert is_feasible(trial, MemoryBudget(100)) is False
    assert is_feasible(trial, MemoryBudget(50)) is False
    assert is_feasible(trial, MemoryBudget(200)) is None
    assert is_feasible(replace(trial, budget_bytes=None), MemoryBudget(200)) is False


def test_a_lower_bound_rules_out_and_never_in() -> None:
    crashed = failed(1, FailureReason.CRASH, seen=80)
    assert is_feasible(crashed, MemoryBudget(100)) is None
    assert is_feasible(crashed, MemoryBudget(79)) is False


def test_a_trial_that_has_not_run_is_unknown() -> None:
    assert is_feasible(Trial(1, TrainSettings(), TrialState.WAITING), MemoryBudget(100)) is None


@pytest.mark.parametrize("peaks", [(100, 100, 100), (100, 80, 60), (100, 140, 90)], ids=["flat", "falling", "noisy"])
def test_readings_that_do_not_grow_with_the_batch_say_nothing_of_batches_that_were_not_tried(
    peaks: tuple[int, ...],
) -> None:
    budget = MemoryBudget(1000)
    tried = [complete(2**n, launch(5.0, peak=peak)) for n, peak in enumerate(peaks)]
    larger = [Trial(1024, TrainSettings(micro_batch_size=1024), TrialState.WAITING)]
    larger.append(failed(2048, FailureReason.CRASH, seen=50))
    board = leaderboard([*tried, *larger], budget, tried[0].settings)
    assert {row.trial.id: row.feasible for row in board.rows} == {1: True, 2: True, 4: True, 1024: None, 2048: None}
    assert {row.trial.id for row in board.rows if row.rank is not None} == {1, 2, 4}


def test_smallest_peak_prefers_what_trials_need_to_what_they_had_got_to() -> None:
    small, large = complete(1, launch(5.0, peak=90 * MIB)), complete(2, launch(5.0, peak=95 * MIB))
    over = [failed(n, FailureReason.OVER_BUDGET, seen=seen) for n, seen in ((3, 7 * MIB), (4, 5 * MIB))]
    assert smallest_peak([large, small, *over]) == (90 * MIB, False)
    assert smallest_peak(over) == (5 * MIB, True)
    assert smallest_peak([failed(5, FailureReason.CRASH)]) is None
    assert smallest_peak([complete(6, launch(5.0, host_peak=3))], "host_peak_bytes") == (3, False)
