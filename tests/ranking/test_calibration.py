"""Comparisons played on the stored noisy machine: a few of the many that tests/benchmarks/calibration.py plays."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from gputune_tui.engine.comparing import BLOCK_S, CYCLE, MOST_PAIRS
from tests.benchmarks.fitting import fit, non_negative_least_squares
from tests.benchmarks.machine import Machine, Noise, PlayedLaunch, Wander, fitted
from tests.benchmarks.measuring import MeasuredPair, TimedBlock
from tests.benchmarks.playing import play, play_search


def test_equal_settings_are_seldom_called_different_and_a_tenth_is_found() -> None:
    random = Random(1)
    found = [play(fitted(), random) for _ in range(60)]
    assert sum(one.verdict in ("faster", "slower") for one in found) <= 9, "6 % of 60 are passed once in 130 runs"
    assert max(one.pairs for one in found) <= MOST_PAIRS
    planted = [play(fitted(), random, b_is_faster=0.1).verdict for _ in range(30)]
    assert planted.count("faster") >= 27


def test_equal_settings_on_a_machine_that_slows_are_tied() -> None:
    random = Random(2)
    boards = [play_search(fitted(), random, 6, 0.10) for _ in range(20)]
    assert sum(all(row.tied_with_best for row in board.rows) for board in boards) >= 16


NOISE = Noise(0.05, 0.06, 0.2, 0.01, 0.4, (Wander(0.04, 2.0),), (), 0.03, 1.2, 0.5, 0.003)


def test_a_fit_finds_the_noise_that_was_played() -> None:
    machine = Machine(NOISE, Random(3))
    pairs = []
    for _ in range(12):
        launches = [PlayedLaunch(machine), PlayedLaunch(machine)]
        blocks = []
        for arm in CYCLE * 8:
            times_s = launches[arm].step_times_s(BLOCK_S)
            blocks.append(TimedBlock(arm, machine.time_s, sum(times_s), tuple(times_s), False))
        pairs.append(MeasuredPair((1.2, 1.2), 0.5, 0.003, tuple(blocks)))
    found = fit(pairs, played=60)
    assert found.step_s == pytest.approx(0.05, rel=0.1)
    assert found.step_sd == pytest.approx(0.06, rel=0.5)
    assert found.launch_sd == pytest.approx(0.03, abs=0.02)
    assert 0.02 < sum(level.sd**2 for level in found.machine) ** 0.5 < 0.08
    assert (found.ready_s, found.end_s) == (1.2, 0.5)


def test_least_squares_keep_what_is_not_negative() -> None:
    rows = [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, 2.0, 0.0], [1.0, 3.0, 1.0]]
    values = [sum(a * b for a, b in zip(row, (2.0, 0.5, 0.0), strict=True)) for row in rows]
    assert non_negative_least_squares(rows, values) == pytest.approx([2.0, 0.5, 0.0], abs=1e-3)


def test_a_machine_wanders_as_far_and_spikes_as_often_as_it_was_told() -> None:
    machine = Machine(replace(NOISE, machine=(Wander(0.1, 5.0),)), Random(4))
    levels = []
    for _ in range(4000):
        machine.wait(5.0)
        levels.append(machine.level())
    assert fmean(level**2 for level in levels) ** 0.5 == pytest.approx(0.1, rel=0.1)
    slowed = Machine(replace(NOISE, machine=()), Random(5), slower_from_s=10.0, slower_by=0.1)
    assert slowed.level() == 0.0
    slowed.wait(10.0)
    assert slowed.level() == pytest.approx(0.0953, abs=1e-3)
