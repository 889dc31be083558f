"""Ratios of two ways that were measured in turn: the interval of Student's t over the cycles' log ratios."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gputune_tui.ranking.student import t_quantile

CONFIDENCE = 0.95
LEAST_CYCLES = 60
"""Cycles of blocks A B B A; a steady drift of the machine cancels out within each."""


@dataclass(frozen=True)
class RatioInterval:
    """A ratio with its 95 % interval."""

    value: float
    low: float
    high: float
    half_width_fraction: float
    """Of the ratio: half the interval's width on the log scale."""
    count: int

    @property
    def holds_one(self) -> bool:
        """Whether the interval contains 1."""
        return self.low <= 1 <= self.high

    def __str__(self) -> str:
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f}), half-width {self.half_width_fraction:.2%}"


def ratio_interval(log_ratios: Sequence[float]) -> RatioInterval:
    """The interval of the mean of at least two log ratios."""
    mean, count = statistics.fmean(log_ratios), len(log_ratios)
    width = t_quantile(CONFIDENCE, count - 1) * statistics.stdev(log_ratios) / math.sqrt(count)
    return RatioInterval(math.exp(mean), math.exp(mean - width), math.exp(mean + width), width, count)
