"""Levels of repeated looks: against published boundaries, their properties, and the error of all looks together."""

from __future__ import annotations

import math
from random import Random
from statistics import NormalDist

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputune_tui.ranking.sequential import look_errors

some_looks = st.integers(1, 12).flatmap(
    lambda last: st.tuples(
        st.lists(st.integers(1, last), min_size=1, max_size=last, unique=True).map(lambda at: tuple(sorted(at))),
        st.just(last),
    )
)


def boundaries(looks: tuple[int, ...], last: int, error: float, power: float) -> list[float]:
    return [NormalDist().inv_cdf(1 - level / 2) for level in look_errors(looks, last, error, power)]


def test_two_looks_are_those_of_the_bivariate_normal_distribution() -> None:
    first, second = boundaries((1, 2), 2, 0.05, 1.0)
    normal, width = NormalDist(), 1e-3
    places = [width * (number + 0.5) for number in range(round(-first / width), round(first / width))]
    beyond = sum(
        normal.pdf(x) * width * (1 - normal.cdf(math.sqrt(2) * second - x) + normal.cdf(-math.sqrt(2) * second - x))
        for x in places
    )
    assert first == pytest.approx(normal.inv_cdf(1 - 0.0125), abs=1e-6)
    assert beyond == pytest.approx(0.025, abs=1e-5)


def test_a_single_look_has_the_whole_error() -> None:
    assert look_errors((4,), 4, 0.05, 2.0) == pytest.approx((0.05,), rel=1e-6)


@settings(deadline=None, max_examples=50)
@given(some_looks, st.floats(0.001, 0.3), st.floats(0.5, 4.0))
def test_each_look_has_less_than_all_together(case: tuple[tuple[int, ...], int], error: float, power: float) -> None:
    looks, last = case
    levels = look_errors(looks, last, error, power)
    assert len(levels) == len(looks)
    assert all(0 < level <= error * (1 + 1e-6) for level in levels)
    spent = error * (looks[-1] / last) ** power
    assert max(levels) <= spent * (1 + 1e-6) <= sum(levels) * (1 + 1e-5), "never more than Bonferroni gives"


@pytest.mark.parametrize("looks", [(), (0, 1), (2, 2), (3, 2), (1, 9)])
def test_looks_that_cannot_be_are_refused(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        look_errors(looks, 8, 0.05, 1.5)


def test_all_looks_together_err_as_often_as_they_say() -> None:
    """10,000 random walks against the boundaries of ten looks."""
    random = Random(3)
    bounds = boundaries(tuple(range(2, 12)), 11, 0.05, 1.5)
    crossed = 0
    for _ in range(10_000):
        total, hit = random.gauss(0, 1), False
        for number, bound in enumerate(bounds, start=2):
            total += random.gauss(0, 1)
            hit = hit or abs(total) > bound * math.sqrt(number)
        crossed += hit
    assert 430 <= crossed <= 570
