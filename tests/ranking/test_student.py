"""The t quantile against printed tables and against closed forms."""

from __future__ import annotations

import math

import pytest

from gputune_tui.ranking.student import t_quantile


@pytest.mark.parametrize(
    ("confidence", "df", "expected"),
    [  # R's qt(), 10 digits; the same to 3 digits in NIST's engineering statistics handbook, table 1.3.6.7.2
        (0.95, 1, 12.7062047362),
        (0.95, 2, 4.3026527297),
        (0.95, 3, 3.1824463053),
        (0.95, 4, 2.7764451052),
        (0.95, 5, 2.5705818356),
        (0.95, 10, 2.2281388520),
        (0.95, 30, 2.0422724563),
        (0.99, 4, 4.6040948714),
        (0.90, 7, 1.8945786051),
        (0.99, 1, 63.6567411629),
    ],
)
def test_quantiles_of_the_table(confidence: float, df: float, expected: float) -> None:
    assert t_quantile(confidence, df) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("confidence", [1e-6, 0.2, 0.5, 0.9, 0.983333, 0.999999])
def test_closed_forms_of_one_and_two_degrees_of_freedom(confidence: float) -> None:
    assert t_quantile(confidence, 1) == pytest.approx(math.tan(math.pi * confidence / 2), rel=1e-7)
    assert t_quantile(confidence, 2) == pytest.approx(confidence * math.sqrt(2 / (1 - confidence**2)), rel=1e-7)


def test_many_degrees_of_freedom_are_the_normal_distribution() -> None:
    assert t_quantile(0.95, 1e7) == pytest.approx(1.9599639845, abs=1e-5)


def test_fewer_degrees_of_freedom_are_wider_and_fractions_lie_between() -> None:
    quantiles = [t_quantile(0.95, df) for df in (2, 2.5, 3, 4.75, 5, 100)]
    assert quantiles == sorted(quantiles, reverse=True)
    assert len(set(quantiles)) == len(quantiles)


@pytest.mark.parametrize(("confidence", "df"), [(0, 3), (1, 3), (0.95, 0), (math.nan, 3), (0.95, math.nan)])
def test_nonsense_is_refused(confidence: float, df: float) -> None:
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(confidence, df)
