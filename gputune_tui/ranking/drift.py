"""Did the machine get slower or faster while it measured: a trend over the blocks of a launch, and between launches.

Each test is wrong in at most `ERROR_RATE` of the cases where there is no trend, under the noise that was measured here
(trial_engine.md section 4): blocks correlated with the one before by up to `CORRELATION`, launches independent with a
standard deviation of about `LAUNCH_PRIOR_SD`. A trend below `DRIFT_FRACTION` over the whole span is not told.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean, median

from gputune_tui.domain.trial import Block, Launch
from gputune_tui.ranking.statistics import LAUNCH_PRIOR_DF, LAUNCH_PRIOR_SD
from gputune_tui.ranking.student import t_quantile

ERROR_RATE = 0.05
LEVEL_WITHIN = 0.04
"""What t is asked for so that `ERROR_RATE` is kept: it is only near the true distribution under correlated noise."""
CORRELATION = 0.7
"""Of the noise of neighbouring blocks: the upper end of what was measured, 0.5 to 0.7."""
DRIFT_FRACTION = 0.05
"""As much as two launches of one setting differ anyway."""
LEAST_BLOCKS = 6
LEAST_LAUNCHES = 2


def drift_within(blocks: Sequence[Block]) -> float | None:
    """By which fraction throughput rose (or fell, below zero) over the blocks of one launch; None without a trend.

    A least-squares line through log throughput, whose slope is held against t with a variance that allows for
    correlated noise (see `_inflation`).
    """
    logs = [
        math.log(b.samples / b.elapsed_s) for b in blocks if b.samples > 0 and b.elapsed_s > 0 and not b.is_disturbed
    ]
    if len(logs) < LEAST_BLOCKS:
        return None
    slope, error, df = _line(logs)
    limit = t_quantile(1 - LEVEL_WITHIN, df) * math.sqrt(_inflation(len(logs)))
    return _told(slope * (len(logs) - 1)) if abs(slope) > limit * error else None


def drift_between(launches: Sequence[Launch]) -> float | None:
    """The same over the launches of one setting, in the order in which they ran.

    Here the variance of a launch is pooled with what launches usually differ by, so that two of them can be tested.
    """
    logs = [
        median(rates)
        for launch in launches
        if (rates := [math.log(b.samples / b.elapsed_s) for b in launch.blocks if b.samples > 0 and b.elapsed_s > 0])
    ]
    if len(logs) < LEAST_LAUNCHES:
        return None
    slope, error, df = _line(logs)
    spread = _spread(len(logs))
    pooled_df = LAUNCH_PRIOR_DF + df
    residual = error**2 * spread * df
    pooled = math.sqrt((LAUNCH_PRIOR_DF * LAUNCH_PRIOR_SD**2 + residual) / pooled_df / spread)
    return _told(slope * (len(logs) - 1)) if abs(slope) > t_quantile(1 - ERROR_RATE, pooled_df) * pooled else None


def _told(log_change: float) -> float | None:
    change = math.expm1(max(-50.0, min(50.0, log_change)))
    return change if abs(log_change) >= math.log1p(DRIFT_FRACTION) else None


def _line(values: Sequence[float]) -> tuple[float, float, int]:
    """Slope of the least-squares line over equal steps, its standard error, and its degrees of freedom."""
    number, centre = len(values), fmean(values)
    middle = (number - 1) / 2
    slope = sum((index - middle) * value for index, value in enumerate(values)) / _spread(number)
    residuals = [value - centre - slope * (index - middle) for index, value in enumerate(values)]
    df = number - 2
    square = sum(r**2 for r in residuals) / df if df else 0.0
    return slope, math.sqrt(square / _spread(number)), df


def _spread(number: int) -> float:
    """Sum of the squared distances of 0 .. number-1 from their middle."""
    return number * (number**2 - 1) / 12


@cache
def _inflation(number: int) -> float:
    """Variance of the slope over what the residuals make of it, where the noise is an AR(1) process: both expected
    values follow from the covariances `CORRELATION` to the power of the distance."""
    middle, numbers = (number - 1) / 2, range(number)
    level = sum(CORRELATION ** abs(i - j) for i in numbers for j in numbers) / number
    line = sum((i - middle) * (j - middle) * CORRELATION ** abs(i - j) for i in numbers for j in numbers)
    line /= _spread(number)
    return line / ((number - level - line) / (number - 2))
