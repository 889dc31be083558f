"""Trials that ran in rounds are compared in these rounds alone, by the leaderboard too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputune_tui.domain.trial import Launch, Trial
from gputune_tui.ranking.leaderboard import leaderboard
from gputune_tui.ranking.rounds import ratio_between, shared_rounds
from gputune_tui.ranking.statistics import paired_ratio, separated, throughput
from tests.ranking.make import BUDGET, complete, launch

SETTLE = (100.0, 60.0, 80.0, 90.0, 70.0)
"""What the machine gives from round to round."""


def in_round(rate: float, name: str | None) -> Launch:
    return replace(launch(*[rate] * 4), round=name)


def in_rounds(factor: float, rounds: int) -> list[Launch]:
    return [in_round(factor * rate, f"r.{number}") for number, rate in enumerate(SETTLE[:rounds])]


def test_pairs_take_out_what_the_machine_does_from_round_to_round() -> None:
    a, b = in_rounds(1.0, 5), in_rounds(1.1, 5)
    ratio = ratio_between(a, b)
    assert ratio is not None
    assert ratio.value == pytest.approx(1.1)
    assert ratio.low > 1
    first, second = throughput(a), throughput(b)
    assert first is not None
    assert second is not None
    assert not separated(first, second), "without the pairs the drift hides the difference"


def test_only_shared_rounds_count() -> None:
    a, b = in_rounds(1.0, 5), in_rounds(1.0, 2)
    assert [(x.round, y.round) for x, y in shared_rounds(a, b)] == [("r.0", "r.0"), ("r.1", "r.1")]
    ratio = ratio_between(a, b)
    assert ratio is not None
    assert ratio.value == pytest.approx(1)
    elsewhere = ratio_between([in_round(100, None)], [in_round(200, "r.0")])
    assert elsewhere is not None
    assert elsewhere.value == pytest.approx(2), "without a shared round all launches count"
    assert ratio_between([], b) is None


def test_of_a_round_that_was_run_again_the_last_launch_counts() -> None:
    a = [in_round(100, "r.0"), in_round(50, "r.0")]
    assert [pair[0].blocks for pair in shared_rounds(a, [in_round(1, "r.0")])] == [a[1].blocks]


def test_disturbed_pairs_are_left_out_where_enough_are_left() -> None:
    slowed = in_round(10, "r.4")
    slowed = replace(slowed, blocks=tuple(replace(b, steal_fraction=0.5) for b in slowed.blocks))
    pairs = list(zip(in_rounds(1.0, 4), in_rounds(1.0, 4), strict=True))
    quiet = paired_ratio([*pairs, (in_round(100, "r.4"), slowed)], 0.95)
    assert quiet is not None
    assert quiet.value == pytest.approx(1)
    noisy = paired_ratio([*pairs[:2], (in_round(100, "r.4"), slowed)], 0.95)
    assert noisy is not None
    assert noisy.low < 0.5, "with too few others it counts, and the interval says how far apart they are"
    assert paired_ratio([], 0.95) is None


def dropped_and_winner() -> list[Trial]:
    """The machine slowed down after the first rounds, when the slower setting had left the race."""
    winner = [in_round(rate, f"r.{number}") for number, rate in enumerate([100.0] * 4 + [60.0] * 5)]
    loser = [in_round(80, f"r.{number}") for number in range(4)]
    screened = [in_round(70, "r.0")]
    return [complete(1, *loser), complete(2, *winner), complete(3, *screened)]


def test_who_left_a_race_while_the_machine_was_fast_does_not_win_it() -> None:
    board = leaderboard(dropped_and_winner(), BUDGET, None)
    assert board.best is not None
    assert board.best.trial.id == 2
    assert [row.tied_with_best for row in board.rows] == [True, False, False]
    loser = board.row(1)
    assert loser is not None
    assert loser.throughput is not None
    assert board.best.throughput is not None
    assert loser.throughput.value > board.best.throughput.value
    assert any("slower than trial 2 side by side" in flag for flag in loser.flags)


def test_a_trial_outside_of_the_race_wins_where_it_is_clearly_faster() -> None:
    board = leaderboard([*dropped_and_winner(), complete(4, launch(*[200.0] * 4))], BUDGET, None)
    assert board.best is not None
    assert board.best.trial.id == 4


def test_rounds_that_others_disturbed_do_not_decide_who_is_fastest() -> None:
    faster, slower = in_rounds(1.1, 5), in_rounds(1.0, 5)
    last = in_round(20, "r.4")
    faster[4] = replace(last, blocks=tuple(replace(b, steal_fraction=0.5) for b in last.blocks))
    board = leaderboard([complete(1, *slower), complete(2, *faster)], BUDGET, None)
    assert board.best is not None
    assert board.best.trial.id == 2


def test_a_round_that_was_broken_off_does_not_hide_the_leader() -> None:
    """Two of three had begun the fourth round, when the machine was fast; once it was begun anew after that."""

    def at(factor: float, *rates: float) -> list[Launch]:
        return [in_round(factor * rate, f"r.{number}") for number, rate in enumerate(rates)]

    slower, other, leader = at(1.0, 100, 100, 100, 130), at(1.01, 100, 100, 100, 130), at(1.05, 100, 100, 100)
    for trials in ([slower, other, leader], [[*slower, in_round(130, "r.3.2")], other, leader]):
        board = leaderboard([complete(n, *launches) for n, launches in enumerate(trials, 1)], BUDGET, None)
        assert board.best is not None
        assert board.best.trial.id == 3
        assert [row.tied_with_best for row in board.rows] == [True] * 3


def test_rounds_of_an_earlier_race_do_not_decide_a_later_one() -> None:
    """The machine was faster in the earlier one."""

    def later(factor: float) -> list[Launch]:
        return [in_round(100 * factor, f"s.{number}") for number in range(4)]

    old = [*(in_round(200, f"r.{number}") for number in range(5)), in_round(100, "s.0")]
    board = leaderboard([complete(1, *old), complete(2, *later(1.05)), complete(3, *later(1.1))], BUDGET, None)
    assert board.best is not None
    assert board.best.trial.id == 3


def test_a_launch_of_a_round_that_measured_nothing_is_no_pair() -> None:
    empty = replace(in_round(1, "r.1"), blocks=())
    assert len(shared_rounds(in_rounds(1.0, 3), [in_round(1, "r.0"), empty])) == 1
    failed_once = complete(2, in_round(100, "r.0"), empty)
    board = leaderboard([complete(1, *in_rounds(1.0, 2)), failed_once], BUDGET, None)
    assert [row.tied_with_best for row in board.rows] == [True, True]
