"""Fit a machine's noise to measured pairs: step noise, levels that stray, and what a launch brings of its own."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random
from statistics import fmean, median, variance

from gputune_tui.domain.trial import Block
from gputune_tui.ranking.estimates import NORMAL_SD_PER_MAD, hodges_lehmann
from gputune_tui.ranking.statistics import PairedLaunch, cycle_log_ratios
from tests.benchmarks.machine import Machine, Noise, PlayedLaunch, Wander
from tests.benchmarks.measuring import MeasuredPair

SPIKE_SDS = 4
"""Steps farther above their block's median are spikes."""
BACK_S = (0.5, 2.0, 8.0, 30.0, 120.0, 600.0)
"""Times of the levels that the machine's wander is made of."""
AT_ONCE_S = 0.2
LAG_FACTOR = 1.5
"""Width of a bin of lags."""
OWN_BACK_S = 10.0
ROUNDS = 6
PLAYED = 600
"""Simulated pairs with which each round of corrections compares, unless told otherwise."""


def fit(pairs: Sequence[MeasuredPair], played: int = PLAYED) -> Noise:
    """The noise that a simulated machine needs to look like these pairs."""
    steps = [step for pair in pairs for block in pair.blocks for step in block.step_times_s]
    sd, correlation, spike_fraction, spike_size = _steps(pairs)
    length = fmean(len(block.step_times_s) for pair in pairs for block in pair.blocks)
    machine = _machine(pairs, sd**2 * (1 + correlation) / (1 - correlation) / length)
    noise = Noise(
        step_s=median(steps),
        step_sd=sd,
        step_correlation=correlation,
        spike_fraction=spike_fraction,
        spike_size=spike_size,
        machine=machine,
        own=(),
        launch_sd=0.0,
        ready_s=median(seconds for pair in pairs for seconds in pair.ready_s),
        end_s=median(pair.end_s for pair in pairs),
        order_s=median(pair.order_s for pair in pairs),
    )
    measured = [paired(pair) for pair in pairs]
    cycles = len(cycle_log_ratios(measured[0]))
    tried: list[tuple[float, Noise]] = []
    for _ in range(ROUNDS):
        trial = played_pairs(noise, cycles, played)
        told, got = spread(measured), spread(trial)
        tried.append((sum(abs(math.log(got[name] / told[name])) for name in told), noise))
        noise = _nearer(noise, measured, trial)
    return min(tried, key=lambda one: one[0])[1]


def _nearer(noise: Noise, measured: Sequence[PairedLaunch], played: Sequence[PairedLaunch]) -> Noise:
    """Correct what the levels leave unexplained: the scatter of cycles, what moves within a pair, and what stays."""
    told, got = spread(measured), spread(played)
    missing = told["pair"] ** 2 - got["pair"] ** 2
    launch_square = noise.launch_sd**2 + missing / 2
    own_square = sum(level.sd**2 for level in noise.own)
    # Few pairs tell little of what moves within them; it must not make pairs differ more than they do.
    if launch_square < 0:
        own_square /= 2
    elif missing > 0:
        own_square = max(0.0, own_square + min(missing, _growth(measured) - _growth(played)) / 2)
    # What blocks scatter beyond their steps; only where these alone are too much are they the ones to change.
    at_once = sum(level.sd**2 for level in noise.machine if level.back_s == AT_ONCE_S)
    square = at_once + told["cycle"] ** 2 - got["cycle"] ** 2
    levels = [(square, AT_ONCE_S), *((one.sd**2, one.back_s) for one in noise.machine if one.back_s != AT_ONCE_S)]
    return replace(
        noise,
        step_sd=noise.step_sd * max(0.5, min(1.0, told["cycle"] / got["cycle"])) if square < 0 else noise.step_sd,
        machine=_wanders(levels),
        own=(Wander(math.sqrt(own_square), OWN_BACK_S),) if own_square > 1e-6 else (),
        launch_sd=math.sqrt(max(0.0, launch_square)),
    )


def played_pairs(noise: Noise, cycles: int, number: int) -> list[PairedLaunch]:
    """As many pairs of that machine, in the order in which they were measured."""
    from gputune_tui.engine.comparing import BLOCK_S, CYCLE

    found = []
    random = Random(1)
    for _ in range(number):
        machine = Machine(noise, random)
        launches = [PlayedLaunch(machine), PlayedLaunch(machine)]
        blocks: tuple[list[Block], list[Block]] = ([], [])
        for turn in CYCLE * cycles:
            blocks[turn].append(launches[turn].block(BLOCK_S))
        found.append(PairedLaunch(tuple(blocks[0]), tuple(blocks[1])))
    return found


def paired(pair: MeasuredPair) -> PairedLaunch:
    """As the product sees it; disturbed blocks keep their mark."""
    arms: tuple[list[Block], list[Block]] = ([], [])
    for block in pair.blocks:
        steps = len(block.step_times_s)
        others = 1.0 if block.is_disturbed else 0.0
        arms[block.arm].append(
            Block(steps, steps, block.elapsed_s, others_cpu_fraction=others, idle_cpu_fraction=1.0 - others)
        )
    return PairedLaunch(tuple(arms[0]), tuple(arms[1]))


def spread(pairs: Sequence[PairedLaunch]) -> dict[str, float]:
    """What a fit must reproduce: deviations of cycles within their pair, and of pairs."""
    within = [ratio - median(found) for pair in pairs if (found := cycle_log_ratios(pair)) for ratio in found]
    return {"cycle": robust_sd(within), "pair": math.sqrt(_centre_variance(pairs))}


def robust_sd(values: Sequence[float]) -> float:
    """From the median absolute deviation around zero."""
    return NORMAL_SD_PER_MAD * median(map(abs, values))


def _steps(pairs: Sequence[MeasuredPair]) -> tuple[float, float, float, float]:
    """Deviation and correlation of the steps of a block, share and size of spikes.

    From the differences of steps one and two apart, which no level moves: their variances are 2 sd² (1 - correlation)
    and 2 sd² (1 - correlation²).
    """
    blocks = [
        [math.log(seconds) for seconds in block.step_times_s]
        for pair in pairs
        for block in pair.blocks
        if not block.is_disturbed and len(block.step_times_s) > 2
    ]
    next_one = robust_sd([b - a for block in blocks for a, b in pairwise(block)])
    next_but_one = robust_sd([b - a for block in blocks for a, b in zip(block, block[2:], strict=False)])
    correlation = min(0.9, max(0.0, (next_but_one / next_one) ** 2 - 1))
    sd = next_one / math.sqrt(2 * (1 - correlation))
    above = [log - median(block) for block in blocks for log in block]
    spikes = [value for value in above if value > SPIKE_SDS * sd]
    return sd, correlation, len(spikes) / len(above), fmean(spikes) if spikes else sd


def _machine(pairs: Sequence[MeasuredPair], steps_square: float) -> tuple[Wander, ...]:
    """Levels whose variogram is that of the blocks: half the mean squared difference over the time between two.

    What blocks scatter beyond the `steps_square` that their steps explain comes back at once.
    """
    points = [
        (block.end_s, math.log(block.elapsed_s / len(block.step_times_s)), (number, block.arm))
        for number, pair in enumerate(pairs)
        for block in pair.blocks
        if not block.is_disturbed
    ]
    bins: dict[tuple[int, bool], list[tuple[float, float]]] = defaultdict(list)
    for (s, x, launch), (t, y, other) in combinations(points, 2):
        lag = max(abs(t - s), 0.1)
        bins[round(math.log(lag, LAG_FACTOR)), launch == other].append((lag, (x - y) ** 2 / 2))
    rows, values = [], []
    for (_, same), found in bins.items():
        if len(found) >= 20:
            lag = fmean(lag for lag, _ in found)
            rows.append([1.0, 0.0 if same else 1.0, *(1 - math.exp(-lag / back_s) for back_s in BACK_S)])
            # The mean of squares of normal noise, from their median: a few stalls are spikes and not a level.
            values.append(median(value for _, value in found) / 0.4549)
    nugget, _launch, *squares = non_negative_least_squares(rows, values)
    levels = [(nugget - steps_square, AT_ONCE_S), *zip(squares, BACK_S, strict=True)]
    return _wanders(levels)


def _wanders(levels: Sequence[tuple[float, float]]) -> tuple[Wander, ...]:
    return tuple(Wander(math.sqrt(square), back_s) for square, back_s in levels if square > 1e-8)


def non_negative_least_squares(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Relative least squares by coordinate descent."""
    weights = [1 / value**2 for value in values]
    found = [0.0] * len(rows[0])
    for _ in range(3000):
        for j in range(len(found)):
            rest = [
                value - sum(a * b for k, (a, b) in enumerate(zip(row, found, strict=True)) if k != j)
                for row, value in zip(rows, values, strict=True)
            ]
            above = sum(w * row[j] * r for w, row, r in zip(weights, rows, rest, strict=True))
            below = sum(w * row[j] ** 2 for w, row in zip(weights, rows, strict=True))
            found[j] = max(0.0, above / below) if below else 0.0
    return found


def _growth(pairs: Sequence[PairedLaunch]) -> float:
    """By how much the difference of two cycles of a pair grows with what lies between them, as a variance."""

    def squared(lags: Callable[[int], bool]) -> float:
        return fmean(
            (a - b) ** 2 / 2
            for pair in pairs
            for (i, a), (j, b) in combinations(enumerate(cycle_log_ratios(pair)), 2)
            if lags(j - i)
        )

    return squared(lambda lag: lag >= 4) - squared(lambda lag: lag <= 2)


def _centre_variance(pairs: Sequence[PairedLaunch]) -> float:
    return variance([hodges_lehmann(found) for pair in pairs if (found := cycle_log_ratios(pair))], 0.0)
