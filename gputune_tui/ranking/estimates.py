"""What the timed blocks of a launch add up to: which of them count, robust centres, and how far these may be off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median

from gputune_tui.domain.trial import Block, Launch

LEAST_QUIET_BLOCKS = 3
"""With fewer undisturbed blocks of a launch all of them count, and the row says so."""
NORMAL_SD_PER_MAD = 1.4826
"""Standard deviation over median absolute deviation of normal noise."""
BLOCK_CORRELATION_FACTOR = 4
"""Variance of a launch's median over that of as many independent blocks: a machine's drift correlates each block with
the next by 0.5 to 0.7 (trial_engine.md section 4), and (1 + 0.6) / (1 - 0.6) is 4."""
MAX_LOG_RATE = 300.0
"""Absurd block times must not overflow: a float ends at exp(709), and an interval needs room around its value."""


def counting_blocks(blocks: Iterable[Block]) -> list[Block]:
    """The blocks of one launch that count: without those that other processes disturbed, where enough are left."""
    counting = [block for block in blocks if counts(block)]
    quiet = [block for block in counting if not block.is_disturbed]
    return quiet if len(quiet) >= LEAST_QUIET_BLOCKS else counting


def log_rates(launch: Launch) -> list[float]:
    """Log samples/s of the blocks that count."""
    return [log_rate(block) for block in counting_blocks(launch.blocks)]


def disturbed_blocks(launches: Sequence[Launch]) -> tuple[int, int]:
    """Blocks used though they were disturbed, and all that were used."""
    used = [block for launch in launches for block in counting_blocks(launch.blocks)]
    return sum(block.is_disturbed for block in used), len(used)


def was_disturbed(launch: Launch) -> bool:
    """True where too few blocks of the launch were left alone by other processes."""
    return disturbed_blocks([launch])[0] > 0


def log_rate(block: Block) -> float:
    """Log samples/s, within bounds."""
    log = math.log(block.samples) - math.log(block.elapsed_s)
    return max(-MAX_LOG_RATE, min(MAX_LOG_RATE, log))


def counts(block: Block) -> bool:
    """True for a block with samples and a time."""
    return block.samples > 0 and math.isfinite(block.elapsed_s) and block.elapsed_s > 0


def hodges_lehmann(values: Sequence[float]) -> float:
    """Median of the means of all pairs of values, each with itself included (J. L. Hodges and E. L. Lehmann, Annals of
    Mathematical Statistics 34, 1963): of normal noise almost as sharp as the mean, and three values in ten may be
    anything.

    Raises:
        statistics.StatisticsError: there is no value.
    """
    return median((a + b) / 2 for i, a in enumerate(values) for b in values[i:])


def variance_of_launch(log_rates: Sequence[float]) -> float:
    """Of the median of a launch's blocks, which drift."""
    return BLOCK_CORRELATION_FACTOR * variance_of_median(log_rates)


def variance_of_median(values: Sequence[float]) -> float:
    """Variance of the median of `values`: pi/2 times that of the mean (the asymptotic figure for normal noise).

    A median that some disturbed blocks cannot move shall not have an interval that they stretch without bound.
    """
    return math.pi / 2 * robust_variance(values) / len(values) if len(values) > 1 else 0.0


def robust_variance(values: Sequence[float]) -> float:
    """From the median absolute deviation, which a few disturbed blocks cannot stretch without bound."""
    centre = median(values)
    return (NORMAL_SD_PER_MAD * median(abs(value - centre) for value in values)) ** 2


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Percentile of sorted values with linear interpolation between neighbours."""
    place = fraction * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
