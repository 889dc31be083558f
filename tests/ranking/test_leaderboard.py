"""Ranks, ties, disqualification, flags and the order of rows."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import (
    FailureReason,
    GuardRecord,
    Launch,
    MemoryPeaks,
    StepBreakdown,
    Trial,
    TrialState,
)
from gputune_tui.ranking.leaderboard import Leaderboard, leaderboard
from tests.ranking.make import BUDGET, HEALTHY, MIB, complete, failed, launch


def board(*trials: Trial, reference: TrainSettings | None = None, budget: MemoryBudget = BUDGET) -> Leaderboard:
    return leaderboard(trials, budget, reference)


def ranks(found: Leaderboard) -> dict[int, int | None]:
    return {row.trial.id: row.rank for row in found.rows}


def test_the_tied_come_first_by_memory_then_the_rest_by_throughput() -> None:
    found = board(
        complete(1, launch(103.0, peak=300 * MIB)),
        complete(2, launch(100.0, peak=200 * MIB)),
        complete(3, launch(50.0, peak=10 * MIB)),
        complete(4, launch(60.0, peak=900 * MIB)),
    )
    assert ranks(found) == {2: 1, 1: 2, 4: 3, 3: 4}
    assert [row.tied_with_best for row in found.rows] == [True, True, False, False]
    assert found.best is not None
    assert found.best.trial.id == 2


def test_equal_memory_is_decided_by_workers_and_then_by_throughput() -> None:
    settings = [TrainSettings(micro_batch_size=4, num_workers=n) for n in (2, 0, 0)]
    rates = (103.0, 100.0, 101.0)
    found = board(*(complete(n, launch(rates[n - 1]), settings=settings[n - 1]) for n in (1, 2, 3)))
    assert ranks(found) == {3: 1, 2: 2, 1: 3}


def test_a_few_mib_are_no_difference_in_memory() -> None:
    settings = [TrainSettings(micro_batch_size=4, num_workers=n) for n in (2, 0, 0)]
    peaks, rates = (749 * MIB, 752 * MIB, 900 * MIB), (100.0, 101.0, 103.0)
    trials = [complete(n + 1, launch(rates[n], peak=peaks[n]), settings=settings[n]) for n in range(3)]
    assert ranks(board(*trials)) == {2: 1, 1: 2, 3: 3}


def test_what_does_not_fit_or_is_not_the_same_step_has_no_rank() -> None:
    fits = complete(1, launch(50.0))
    too_large = complete(2, launch(500.0, peak=2048 * MIB))
    unknown = complete(3, launch(500.0, peak=None))
    diverged = complete(4, launch(500.0, guard=replace(HEALTHY, losses=(9.0, 9.0, 9.0))))
    still = complete(5, launch(500.0, guard=replace(HEALTHY, parameters_changed=False)))
    empty = complete(6, launch())
    over = failed(7, FailureReason.OVER_BUDGET)
    found = board(fits, too_large, unknown, diverged, still, empty, over, reference=fits.settings)
    assert ranks(found) == {1: 1, 2: None, 3: None, 4: None, 5: None, 6: None, 7: None}
    by_id = {row.trial.id: row for row in found.rows}
    assert (by_id[2].feasible, by_id[3].feasible, by_id[7].feasible) == (False, None, False)
    assert "loss of step 1" in str(by_id[4].disqualified)
    assert "no parameter moved" in str(by_id[5].disqualified)
    assert "too few samples" in str(by_id[6].disqualified)
    assert [by_id[n].disqualified for n in (1, 2, 3, 7)] == [None] * 4
    assert not any(by_id[n].tied_with_best for n in range(2, 8))


def test_the_budget_is_asked_for_anew() -> None:
    trials = complete(1, launch(50.0, peak=10 * MIB)), complete(2, launch(500.0, peak=90 * MIB))
    assert ranks(board(*trials)) == {1: 2, 2: 1}
    assert ranks(board(*trials, budget=MemoryBudget(20 * MIB))) == {1: 1, 2: None}
    none = board(*trials, budget=MemoryBudget(1 * MIB))
    assert none.best is None
    assert ranks(none) == {1: None, 2: None}


def test_any_launch_can_disqualify() -> None:
    bad = launch(100.0, guard=replace(HEALTHY, non_finite_steps=1))
    assert board(complete(1, launch(100.0), bad)).best is None


def test_the_guard_says_what_it_compared() -> None:
    base, other, command = complete(1, launch(50.0)), complete(2, launch(60.0)), complete(3, launch(60.0, guard=None))
    found = board(base, other, command, reference=base.settings)
    assert {row.trial.id: row.guard for row in found.rows} == {1: "baseline", 2: "passed", 3: "not checked"}
    assert {row.guard for row in board(base, other).rows} == {"not checked"}


def test_batchnorm_at_another_micro_batch_is_flagged_and_not_disqualified() -> None:
    base = complete(16, launch(50.0, notes=("BatchNorm sees micro-batch 16",)))
    other_step = replace(HEALTHY, losses=(9.0, 9.0, 9.0))
    other = complete(8, launch(60.0, guard=other_step, notes=("BatchNorm sees micro-batch 8",)))
    found = board(base, other, reference=base.settings)
    assert None not in ranks(found).values()
    row = found.row(8)
    assert row is not None
    assert row.flags == ("BatchNorm sees micro-batch 8",)
    assert found.row(99) is None


def test_flags_are_said_once() -> None:
    skipping = replace(HEALTHY, skipped_steps=2)
    trial = complete(
        1,
        launch(50.0, notes=("cached data",), guard=skipping),
        launch(50.0, notes=("cached data", "shared card"), guard=replace(skipping, skipped_steps=1), retries=4),
    )
    assert board(trial).rows[0].flags == (
        "cached data",
        "shared card",
        "3 steps skipped by the gradient scaler",
        "fits, but thrashing: 4 allocator retries",
    )


def test_ratio_to_the_reference() -> None:
    base, fast = complete(1, launch(50.0)), complete(2, launch(75.0))
    found = board(base, fast, reference=base.settings)
    assert {row.trial.id: round(row.ratio_to_reference or 0, 6) for row in found.rows} == {1: 1.0, 2: 1.5}
    assert {row.ratio_to_reference for row in board(base, fast).rows} == {None}
    gone = failed(1, FailureReason.CRASH, settings=base.settings)
    assert {row.ratio_to_reference for row in board(gone, fast, reference=base.settings).rows} == {None}


def test_the_breakdown_is_that_of_the_median_launch() -> None:
    parts = [StepBreakdown(None, None, None, None, None, None, None, total) for total in (1.0, 2.0, 3.0)]
    trial = complete(1, *(launch(rate, breakdown=part) for rate, part in zip((50.0, 10.0, 20.0), parts, strict=True)))
    assert board(trial).rows[0].breakdown is parts[2]
    assert board(complete(1, launch(5.0))).rows[0].breakdown is None


def test_rows_without_a_rank_follow_by_state() -> None:
    states = (TrialState.WAITING, TrialState.RUNNING, TrialState.PRUNED)
    others = [Trial(n, TrainSettings(micro_batch_size=n), state) for n, state in enumerate(states, start=1)]
    found = board(
        *others,
        failed(5, FailureReason.CRASH),
        failed(4, FailureReason.CRASH),
        complete(7, launch(5.0, peak=None)),
        complete(8, launch(9.0, peak=None)),
        complete(6),
        complete(9, launch(1.0)),
    )
    assert [row.trial.id for row in found.rows] == [9, 8, 7, 6, 4, 5, 3, 2, 1]


def test_of_two_trials_at_the_reference_the_first_is_the_baseline_in_any_order() -> None:
    settings = TrainSettings()
    trials = [complete(n, launch(10.0 * n), settings=settings) for n in (1, 2)]
    for order in (trials, trials[::-1]):
        found = board(*order, reference=settings)
        assert {row.trial.id: row.guard for row in found.rows} == {1: "baseline", 2: "passed"}
        assert {row.trial.id: round(row.ratio_to_reference or 0, 6) for row in found.rows} == {1: 1.0, 2: 2.0}


def test_nothing_at_all() -> None:
    assert board() == Leaderboard((), None)


def test_nan_first_does_not_win() -> None:
    nan = Trial(1, TrainSettings(), TrialState.COMPLETE, launches=(launch(guard=GuardRecord((), (), 0, 5, True)),))
    found = board(nan, complete(2, launch(3.0)), complete(3, launch(1.0)))
    assert ranks(found) == {2: 1, 3: 2, 1: None}


peaks = st.none() | st.integers(1, 2048).map(lambda mib: mib * MIB)
rates = st.lists(st.floats(0.1, 1000), max_size=3)
guards = st.none() | st.builds(GuardRecord, st.lists(st.floats(), max_size=3).map(tuple), st.just(()))


@st.composite
def trials(draw: st.DrawFn) -> list[Trial]:
    found = []
    for number in range(1, draw(st.integers(0, 7)) + 1):
        state = draw(st.sampled_from(TrialState))
        made: tuple[Launch, ...] = ()
        if state is TrialState.COMPLETE:
            sets = draw(st.lists(st.tuples(rates, peaks, guards), max_size=2))
            made = tuple(launch(*r, peak=p, guard=g) for r, p, g in sets)
        settings = TrainSettings(micro_batch_size=draw(st.integers(1, 3)), num_workers=draw(st.integers(0, 2)))
        found.append(Trial(number, settings, state, launches=made, partial_memory=MemoryPeaks()))
    return found


@given(trials(), st.randoms(use_true_random=False))
def test_ranks_are_unique_consistent_and_do_not_depend_on_the_order(found: list[Trial], random: object) -> None:
    first = leaderboard(found, BUDGET, TrainSettings(micro_batch_size=1))
    shuffled = list(found)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # Hypothesis gives a Random
    assert leaderboard(shuffled, BUDGET, TrainSettings(micro_batch_size=1)) == first or has_nan(found)
    ranked = [row for row in first.rows if row.rank is not None]
    assert [row.rank for row in ranked] == list(range(1, len(ranked) + 1))
    assert list(first.rows[: len(ranked)]) == ranked
    assert all(row.feasible and row.disqualified is None and row.throughput for row in ranked)
    tied = [row.tied_with_best for row in first.rows]
    assert tied == sorted(tied, reverse=True)
    assert first.best == (ranked[0] if ranked else None)
    rest = [row.throughput.value for row in ranked if row.throughput and not row.tied_with_best]
    assert rest == sorted(rest, reverse=True)


def has_nan(found: list[Trial]) -> bool:
    """NaN is not equal to itself, so boards that hold one cannot be compared as values."""
    return any(loss != loss for t in found for item in t.launches if item.guard for loss in item.guard.losses)
