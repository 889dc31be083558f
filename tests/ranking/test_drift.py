"""A drifting machine is told, and a steady one is not: the stated error rate held against simulated noise."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.domain.trial import Block
from gputune_tui.ranking import drift
from gputune_tui.ranking.drift import CORRELATION, ERROR_RATE, drift_between, drift_within
from gputune_tui.ranking.statistics import LAUNCH_PRIOR_SD
from tests.ranking.make import blocks, launch

SIMULATED = 2000
SPARE = 0.015
"""Three standard deviations of a rate of 5 % among so many."""


def correlated(rng: random.Random, number: int, correlation: float, sd: float) -> list[float]:
    """Noise of an AR(1) process."""
    values = [rng.gauss(0, sd)]
    while len(values) < number:
        values.append(correlation * values[-1] + math.sqrt(1 - correlation**2) * rng.gauss(0, sd))
    return values


def of_logs(logs: Sequence[float]) -> tuple[Block, ...]:
    return blocks(*(100 * math.exp(value) for value in logs))


@pytest.mark.parametrize("number", [6, 8, 16])
@pytest.mark.parametrize("correlation", [0.0, CORRELATION])
def test_noise_alone_is_seldom_called_a_trend(monkeypatch: pytest.MonkeyPatch, number: int, correlation: float) -> None:
    monkeypatch.setattr(drift, "DRIFT_FRACTION", 0.0)  # the test alone, without its second condition
    rng = random.Random(number)
    found = [drift_within(of_logs(correlated(rng, number, correlation, 0.03))) for _ in range(SIMULATED)]
    assert sum(change is not None for change in found) / SIMULATED <= ERROR_RATE + SPARE


@pytest.mark.parametrize("number", [2, 3, 8])
def test_launches_that_differ_as_usual_are_seldom_called_a_trend(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(drift, "DRIFT_FRACTION", 0.0)
    rng = random.Random(number)
    found = [
        drift_between([launch(100 * math.exp(rng.gauss(0, LAUNCH_PRIOR_SD))) for _ in range(number)])
        for _ in range(SIMULATED)
    ]
    assert sum(change is not None for change in found) / SIMULATED <= ERROR_RATE + SPARE


@pytest.mark.parametrize("change", [-0.2, 0.2])
def test_a_real_trend_is_found_with_its_size(change: float) -> None:
    rng = random.Random(1)
    line = [math.log1p(change) * index / 7 + rng.gauss(0, 0.015) for index in range(8)]
    found = drift_within(of_logs(line))
    assert found == pytest.approx(change, abs=0.06)
    across = drift_between([launch(100 * (1 + change * index / 4)) for index in range(5)])
    assert across == pytest.approx(change, abs=0.02)


def test_two_launches_far_apart_are_a_drift_and_two_that_are_not_are_none() -> None:
    assert drift_between([launch(100.0), launch(130.0)]) == pytest.approx(0.3)
    assert drift_between([launch(100.0), launch(106.0)]) is None
    assert drift_between([launch(100.0)]) is None


def test_what_is_certain_and_small_is_not_told() -> None:
    assert drift_within(blocks(*(100 + index / 10 for index in range(8)))) is None


def test_disturbed_blocks_say_nothing_of_the_machine() -> None:
    steady = blocks(*[100.0] * 6)
    slow = [Block(16, 2, 16 / rate, others_cpu_fraction=0.5, idle_cpu_fraction=0.0) for rate in (60.0, 50.0, 40.0)]
    assert drift_within((*steady, *slow)) is None
    assert drift_within(blocks(60.0, 50.0, 40.0)) is None, "too few blocks"


@given(
    st.lists(
        st.builds(Block, st.integers(0, 10**6), st.integers(0, 9), st.floats(0, 1e9, allow_subnormal=True)), max_size=20
    )
)
def test_any_blocks_give_a_finite_change_or_none(given_blocks: list[Block]) -> None:
    for change in (drift_within(given_blocks), drift_between([launch(), launch(1.0, 2.0)])):
        assert change is None or math.isfinite(change)
