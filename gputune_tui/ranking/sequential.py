"""Looking at a comparison while it goes on: how wide its interval must be so that all looks together keep the error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

GRID_STEP = 0.15
"""In standard deviations of one increment. Halving it moves no level by more than 1e-5 of its value."""


@lru_cache(maxsize=64)
def look_errors(looks: Sequence[int], last: int, error: float, power: float) -> tuple[float, ...]:
    """Two-sided error of each look, such that the chance of any of them being wrong is `error` together.

    After k of `last` equally informative increments error · (k / last)^power may have been spent (K. Kim and D. L.
    DeMets, Biometrika 74, 1987): a power above 1 keeps most of it for the later looks. The levels follow by carrying
    the density of the running sum from look to look (P. Armitage, C. K. McPherson and B. C. Rowe, JRSS A 132, 1969).
    They are those of normal sums with a known variance, to be used as levels of a t statistic (C. Jennison and B. W.
    Turnbull, Group Sequential Methods, 2000, section 4.4); an interval of that level after each look holds the truth
    at all looks together with probability 1 - error (their section 9.1).

    Args:
        looks: numbers of increments after which is looked, ascending; the last may be below `last`.
        last: increments after which the whole error may be spent.
        error: between 0 and 1.
        power: positive.

    Raises:
        ValueError: no ascending looks from 1 to `last`.
    """
    if not looks or looks[0] < 1 or looks[-1] > last or any(b <= a for a, b in pairwise(looks)):
        raise ValueError(f"looks {looks} do not ascend from 1 to {last}")
    levels: list[float] = []
    places: tuple[float, ...] = (0.0,)
    weights: tuple[float, ...] = (1.0,)
    at, spent = 0, 0.0
    for look in looks:
        allowed = error * (look / last) ** power
        spread = math.sqrt(look - at)
        bound = _bound(places, weights, spread, allowed - spent)
        levels.append(math.erfc(bound / math.sqrt(2 * look)))
        places, weights = _carried(places, weights, spread, bound)
        at, spent = look, allowed
    return tuple(levels)


def _bound(places: Sequence[float], weights: Sequence[float], spread: float, error: float) -> float:
    """The distance from zero that the sum passes at this look with probability `error`."""
    low, high = 0.0, 1.0
    while _beyond(places, weights, spread, high) > error:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if _beyond(places, weights, spread, middle) > error:
            low = middle
        else:
            high = middle
    return high


def _beyond(places: Sequence[float], weights: Sequence[float], spread: float, bound: float) -> float:
    scale = spread * math.sqrt(2)
    tails = (math.erfc((bound - x) / scale) + math.erfc((bound + x) / scale) for x in places)
    return sum(weight * tail / 2 for weight, tail in zip(weights, tails, strict=True))


def _carried(
    places: Sequence[float], weights: Sequence[float], spread: float, bound: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Where the sum is after an increment if it has not passed the bound: points and their masses (Simpson's rule)."""
    half = max(4, math.ceil(bound / GRID_STEP / spread))
    step = bound / half
    reached = tuple(step * number for number in range(-half, half + 1))
    factor = step / 3 / (spread * math.sqrt(2 * math.pi))
    density = (
        sum(w * math.exp(-(((y - x) / spread) ** 2) / 2) for x, w in zip(places, weights, strict=True)) for y in reached
    )
    shares = (1 if abs(number) == half else 4 if (number + half) % 2 else 2 for number in range(-half, half + 1))
    return reached, tuple(factor * share * value for share, value in zip(shares, density, strict=True))
