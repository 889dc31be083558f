"""Quantiles of Student's t distribution with the standard library alone."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_EPSILON = 1e-15


@lru_cache(maxsize=1024)
def t_quantile(confidence: float, df: float) -> float:
    """The t for which a share `confidence` of the distribution lies between -t and t; `df` > 0 degrees of freedom.

    P(|T| < t) = 1 - I_x(df/2, 1/2) with x = df / (df + t²) (NIST DLMF 8.17, Abramowitz and Stegun 26.7.1), inverted
    by bisection, which needs no starting guess and ends at the resolution of a float.

    Raises:
        ValueError: `confidence` is not between 0 and 1 or `df` is not positive.
    """
    if not 0 < confidence < 1 or not df > 0:
        raise ValueError(f"no t quantile for confidence {confidence} and {df} degrees of freedom")
    low, high = 0.0, 1.0
    while _two_sided(high, df) < confidence:
        low, high = high, high * 2
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if _two_sided(middle, df) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _two_sided(t: float, df: float) -> float:
    square = t * t
    # Of two equal forms the one that does not lose digits in a difference from one.
    if square < df:
        return _incomplete_beta(0.5, df / 2, square / (df + square))
    return 1 - _incomplete_beta(df / 2, 0.5, df / (df + square))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    # The fraction converges quickly on this side of the mean alone; the other side follows from the symmetry.
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(a, b, x) / a
    return 1 - front * _continued_fraction(b, a, 1 - x) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of DLMF 8.17.22 by Lentz's method (Numerical Recipes, 3rd edition, section 6.4)."""
    c = 1.0
    d = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_zero(1 + term * d)
            c = _away_from_zero(1 + term / c)
            result *= c * d
        if abs(c * d - 1) < _EPSILON:
            break
    return result


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
