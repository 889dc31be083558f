"""Throughput, step time and A/B ratios from timed blocks, with intervals that hold block and launch noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from gputune_tui.domain.trial import Block, Launch
from gputune_tui.ranking.estimates import (
    counting_blocks,
    counts,
    hodges_lehmann,
    log_rate,
    log_rates,
    percentile,
    robust_variance,
    variance_of_launch,
    variance_of_median,
    was_disturbed,
)
from gputune_tui.ranking.student import t_quantile

Verdict = Literal["faster", "slower", "tied", "undecided"]

LAUNCH_PRIOR_SD = 0.035
"""Standard deviation of log throughput between launches of one setting: two launches differ by about 5 %, which is
sqrt(2) times this (shared/research trial_engine.md section 4)."""
LAUNCH_DRIFT_SD = 0.05
"""What comes on top where two launches did not run side by side: together they are the 6 % by which the medians of
launches one after the other deviated (the same section). Over hours it was 10 %, which a study's own launches show."""
LAUNCH_PRIOR_DF = 4
"""How many launches' worth of evidence that prior stands for: a few launches of one's own outweigh it."""
PAIR_PRIOR_SD = math.sqrt(2) * LAUNCH_PRIOR_SD
"""Of the log ratio of two launches of a setting, beside the noise of their cycles."""
PAIR_PRIOR_CYCLES = 1.25
"""A machine that strays within a pair strays between pairs, too: so many times the variance that a pair's cycles leave
in its ratio is in the prior. Without it a noisy machine looks steadier than it is while there are few pairs."""
ALTERNATING_PRIOR_BLOCKS = 1.5
"""The same for launches one after the other: so many times the variance of their single blocks."""
PAIR_PRIOR_DF = 4
"""How many pairs' worth of evidence that is; chosen with tests/benchmarks/calibration.py."""
HODGES_LEHMANN_GAIN = 2 / 3
"""Variance of the Hodges-Lehmann estimate over that of the median: (pi / 3) / (pi / 2) for normal noise."""
_MAX_LOG = 700.0
"""A float ends at exp(709)."""


@dataclass(frozen=True)
class Throughput:
    """Samples per second of a setting over all ranks, with its confidence interval."""

    value: float
    low: float
    high: float
    confidence: float
    launches: int
    blocks: int
    """Timed blocks that count."""
    steps: int
    """Optimizer steps in these blocks."""


@dataclass(frozen=True)
class LaunchSpread:
    """How much launches of one setting differ, and how much evidence that is."""

    sd: float
    """Standard deviation of log throughput between launches, beside what their blocks explain."""
    df: float
    """Degrees of freedom."""
    within: float = 0.0
    """Mean variance that the blocks of a launch leave in its log throughput; no launch is taken for steadier."""


@dataclass(frozen=True)
class Scatter:
    """How much the launches of each of some settings differ in log throughput."""

    square: float
    """Sum of squares about the mean of each setting, beside what their blocks explain."""
    df: int
    """Degrees of freedom."""
    within: float
    """Sum over the launches of the variance that its blocks leave in each."""
    launches: int
    """Those with blocks that count."""


APART_PRIOR_DF = 6
"""How much evidence that prior is for launches apart from each other, chosen with `play_search` of tests/benchmarks: of
leaderboards of six equal settings with a launch each 0.5 % separate one, 4.5 % on a machine of twice the noise. With 4
fewer do, but among twelve settings three fifths of the speed is still a tie; with 8 it is 10 % on the noisy machine."""
PRIOR_SPREAD = LaunchSpread(math.hypot(LAUNCH_PRIOR_SD, LAUNCH_DRIFT_SD), APART_PRIOR_DF)
"""What is known of launches before any was seen."""
MOST_SPREAD_DF = 12
"""Launches of other settings count as no more evidence than this: settings are not all equally steady."""


@dataclass(frozen=True)
class StepTime:
    """Seconds per optimizer step over all timed steps."""

    median_s: float
    p95_s: float


@dataclass(frozen=True)
class PairedLaunch:
    """Blocks of two launches that ran side by side in the order A B B A, A B B A, ..."""

    a: tuple[Block, ...]
    """A's blocks in the order in which they ran: two of each cycle."""
    b: tuple[Block, ...]
    interleaved: bool = True
    """False for two launches one after the other: what the machine drifts between them is in their ratio."""


@dataclass(frozen=True)
class Ratio:
    """Throughput of B over that of A, with its confidence interval."""

    value: float
    low: float
    high: float
    confidence: float


LEAST_QUIET_PAIRS = 3
"""With fewer undisturbed pairs of launches all of them count: the interval is then as wide as they scatter."""


def scatter(launches: Sequence[Launch]) -> Scatter:
    """How much the launches of one setting differ; nothing of one launch, or where no block counts."""
    logs = [rates for launch in launches if (rates := log_rates(launch))]
    within = [variance_of_launch(values) for values in logs]
    if len(logs) < 2:
        return Scatter(0.0, 0, sum(within), len(logs))
    centres = [median(values) for values in logs]
    mean, df = fmean(centres), len(centres) - 1
    square = sum((centre - mean) ** 2 for centre in centres) - df * fmean(within)
    return Scatter(max(0.0, square), df, sum(within), len(logs))


def launch_spread(seen: Scatter) -> LaunchSpread:
    """The prior pooled with what was seen of other settings.

    A machine that drifts shows it in settings that were launched at different times, and then no setting that was
    launched once may be taken for steadier.
    """
    df = PRIOR_SPREAD.df + seen.df
    sd = math.sqrt((PRIOR_SPREAD.df * PRIOR_SPREAD.sd**2 + seen.square) / df)
    return LaunchSpread(sd, min(df, MOST_SPREAD_DF), seen.within / seen.launches if seen.launches else 0.0)


def throughput(
    launches: Sequence[Launch], confidence: float = 0.95, spread: LaunchSpread = PRIOR_SPREAD
) -> Throughput | None:
    """Geometric mean of the launches' median block throughputs; None where no block counts.

    The interval is that of a moderated t statistic on the launches' log medians: their variance is pooled with a
    prior (G. K. Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, article 3), so that even
    one launch has an interval, as wide as launches usually differ, or do in this study where `spread` tells. These
    launches must not be among those that `spread` was made of (`StudySpread.without`), or they would count twice.
    """
    used = [blocks for launch in launches if (blocks := counting_blocks(launch.blocks))]
    if not used:
        return None
    logs = [[log_rate(block) for block in blocks] for blocks in used]
    within = [variance_of_launch(values) for values in logs]
    prior_sd = math.sqrt(spread.sd**2 + max(spread.within, fmean(within)))
    centre, error, df = _moderated([median(values) for values in logs], within, prior_sd, spread.df)
    low, value, high = _interval(centre, error, df, confidence)
    blocks = [block for launch in used for block in launch]
    return Throughput(value, low, high, confidence, len(used), len(blocks), sum(block.steps for block in blocks))


def step_time(launches: Sequence[Launch]) -> StepTime | None:
    """Median and 95th percentile over the steps of all launches; None where there is none."""
    times = sorted(t for launch in launches for t in launch.step_times_s if math.isfinite(t) and t > 0)
    if not times:
        return None
    return StepTime(percentile(times, 0.5), percentile(times, 0.95))


def compare(pairs: Sequence[PairedLaunch], confidence: float = 0.95) -> Ratio | None:
    """B against A over pairs of interleaved launches; None where no cycle counts.

    Within a cycle A B B A a steady drift cancels out. A pair's log ratio is the Hodges-Lehmann estimate over its
    cycles; over the pairs the interval is that of a moderated paired t (see `throughput`), because more cycles of one
    pair never remove the offset of its two launches.
    """
    told = [(pair, ratios) for pair in pairs if (ratios := cycle_log_ratios(pair))]
    if not told:
        return None
    cycles = [ratios for _, ratios in told]
    within = [variance_of_median(values) * HODGES_LEHMANN_GAIN for values in cycles]
    expected = [
        PAIR_PRIOR_CYCLES * own if pair.interleaved else ALTERNATING_PRIOR_BLOCKS * _block_variance(pair)
        for (pair, _), own in zip(told, within, strict=True)
    ]
    prior_sd = math.sqrt(PAIR_PRIOR_SD**2 + fmean(expected))
    centre, error, df = _moderated([hodges_lehmann(values) for values in cycles], within, prior_sd, PAIR_PRIOR_DF)
    low, value, high = _interval(centre, error, df, confidence)
    return Ratio(value, low, high, confidence)


def verdict(ratio: Ratio | None, margin_fraction: float) -> Verdict:
    """B against A: "tied" where the whole interval lies between 1 / (1 + margin) and 1 + margin.

    A difference that is certain yet within the margin is a tie too: it is too small to matter.
    """
    if ratio is None:
        return "undecided"
    if ratio.low >= 1 / (1 + margin_fraction) and ratio.high <= 1 + margin_fraction:
        return "tied"
    if ratio.low > 1:
        return "faster"
    return "slower" if ratio.high < 1 else "undecided"


def separated(a: Throughput, b: Throughput, comparisons: int = 1, spread: LaunchSpread = PRIOR_SPREAD) -> bool:
    """True where the interval of the log difference of two independently launched settings leaves out zero.

    `comparisons` share the error (Bonferroni).
    """
    ratio = unpaired_ratio(a, b, 1 - (1 - a.confidence) / comparisons, spread)
    return ratio.low > 1 or ratio.high < 1


def unpaired_ratio(a: Throughput, b: Throughput, confidence: float, spread: LaunchSpread = PRIOR_SPREAD) -> Ratio:
    """B over A for settings that were launched independently; `spread` is that with which both were computed.

    The variances add. The degrees of freedom follow Satterthwaite, rounded down, but the spread is one estimate in
    both variances: its evidence counts once, and only that of the launches themselves adds up.
    """
    sides = [(_standard_error(t, spread) ** 2 / _throughput_df(t, spread), t.launches - 1) for t in (a, b)]
    total = sum(unit * (spread.df + own) for unit, own in sides)
    df = total**2 / (spread.df * sum(unit for unit, _ in sides) ** 2 + sum(own * unit**2 for unit, own in sides))
    centre = math.log(b.value) - math.log(a.value)
    low, value, high = _interval(centre, math.sqrt(total), max(1, math.floor(df + 1e-9)), confidence)
    return Ratio(value, low, high, confidence)


def paired_ratio(pairs: Sequence[tuple[Launch, Launch]], confidence: float) -> Ratio | None:
    """B over A from pairs (A's launch, B's launch) that ran one right after the other; None where no pair counts.

    A pair's log ratio is the difference of the launches' log medians; the interval is that of a moderated paired t,
    whose prior is that of two independent launch offsets. Pairs that other processes disturbed are left out where
    enough others are left.
    """
    quiet = [pair for pair in pairs if not any(map(was_disturbed, pair))]
    counting = quiet if len(quiet) >= LEAST_QUIET_PAIRS else pairs
    used = [(a, b) for first, second in counting if (a := log_rates(first)) and (b := log_rates(second))]
    if not used:
        return None
    within = [variance_of_median(a) + variance_of_median(b) for a, b in used]
    # One pair alone shows nothing of how pairs spread: its own block noise comes on top of the prior.
    prior_sd = math.sqrt(PAIR_PRIOR_SD**2 + (within[0] if len(used) == 1 else 0.0))
    centre, error, df = _moderated([median(b) - median(a) for a, b in used], within, prior_sd, LAUNCH_PRIOR_DF)
    low, value, high = _interval(centre, error, df, confidence)
    return Ratio(value, low, high, confidence)


def _throughput_df(value: Throughput, spread: LaunchSpread) -> float:
    return spread.df + value.launches - 1


def _standard_error(value: Throughput, spread: LaunchSpread) -> float:
    """Standard error of log throughput, from the interval that was made of it."""
    half_width = (math.log(value.high) - math.log(value.low)) / 2
    return half_width / t_quantile(value.confidence, _throughput_df(value, spread))


def _moderated(
    centres: Sequence[float], variances_within: Sequence[float], prior_sd: float, prior_df: float
) -> tuple[float, float, float]:
    """Mean, its standard error and degrees of freedom for launch (or pair) centres with a prior variance.

    The prior holds the noise within a launch, as the spread of several does; less than that noise it never is.
    """
    mean, number = fmean(centres), len(centres)
    df = prior_df + number - 1
    spread = (prior_df * prior_sd**2 + sum((centre - mean) ** 2 for centre in centres)) / df
    return mean, math.sqrt(max(spread, fmean(variances_within)) / number), df


def _interval(centre: float, error: float, df: float, confidence: float) -> tuple[float, float, float]:
    width = t_quantile(confidence, df) * error
    low, value, high = (
        math.exp(max(-_MAX_LOG, min(_MAX_LOG, log))) for log in (centre - width, centre, centre + width)
    )
    return low, value, high


def _block_variance(pair: PairedLaunch) -> float:
    """How much single blocks scatter, both launches together."""
    launches = [[log_rate(block) for block in counting_blocks(blocks)] for blocks in (pair.a, pair.b)]
    return sum(robust_variance(values) for values in launches if values)


def cycle_log_ratios(pair: PairedLaunch) -> list[float]:
    """Log ratio of each whole cycle; of a pair that ended before its first cycle was over, of what there is."""
    length = min(len(pair.a), len(pair.b))
    whole = [(pair.a[i : i + 2], pair.b[i : i + 2]) for i in range(0, length - 1, 2)]
    cycles = whole or [(pair.a[:1], pair.b[:1])]
    counting = [(a, b) for a, b in cycles if a and b and all(map(counts, a + b))]
    quiet = [(a, b) for a, b in counting if not any(block.is_disturbed for block in (*a, *b))]
    return [fmean(map(log_rate, b)) - fmean(map(log_rate, a)) for a, b in quiet or counting]
