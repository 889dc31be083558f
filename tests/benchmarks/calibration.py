"""How often the verdict of `ab` is wrong, and how soon it is right: simulated comparisons, and real ones.

Run: python -m tests.benchmarks.calibration [--comparisons 2000] [--fit [PAIRS]] [--real N [--max-time S]]
     [--planted FRACTION N]

The simulation plays comparisons through the product's own rules on a machine whose noise was fitted to real launches
of `lm` tiny (`--fit`, some minutes on an idle machine; machine.json holds the figures). Simulated seconds count
everything: both launches with their warm-up, the steps that use up prefetched batches, the end of the launches. With
`--real` or `--planted` only these are run, one after the other, some minutes each.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import NormalDist, median

from gputune_tui.ranking.statistics import LAUNCH_PRIOR_SD
from gputune_tui.telemetry.host import host_limits
from tests.benchmarks.comparing import compare_really, verdicts
from tests.benchmarks.fitting import fit, paired, played_pairs, spread
from tests.benchmarks.machine import FITTED, Noise, as_document, fitted
from tests.benchmarks.measuring import CYCLES, measure
from tests.benchmarks.playing import Played, play, play_search

COMPARISONS = 2000
FALSE_FRACTION = 0.06
STEP_S = 0.05
PLANTED = ((0.10, 60.0, 0.90), (0.05, 180.0, 0.80))
"""How much faster B is, within how many seconds it must be found, and in which share of the comparisons."""
BUSY = FITTED.with_name("machine_busy.json")
"""The same machine while other processes took a twentieth of it, fitted once."""
OTHER_MACHINES = (0.25, 2.0)
"""The error must hold on a steadier and on a noisier machine, too: all deviations so many times as large."""
READY_S, END_S = 1.5, 0.3
"""At least these costs are taken, since a machine is seldom as idle as for the fit: 1.2 s from the request of a warm
launch to its first step, and six steps of warm-up."""
SETTINGS, SLOWER_BY = 6, 0.10
FALSE_REAL, RIGHT_REAL = 0.1, 0.7
"""Shares of few real comparisons, whose own intervals are wide."""
PATIENCE_S = 3600.0


def wilson(count: int, number: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a share (E. B. Wilson, JASA 22, 1927)."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, square = count / number, z * z / number
    half = z * math.sqrt(share * (1 - share) / number + square / 4 / number)
    return (share + square / 2 - half) / (1 + square), (share + square / 2 + half) / (1 + square)


def told(what: str, count: int, number: int, limit: float, at_most: bool) -> bool:
    """Print a share with its interval; True for a miss."""
    low, high = wilson(count, number)
    share = count / number
    passed = share <= limit if at_most else share >= limit
    print(
        f"{what}: {count} of {number}, {share:.1%} ({low:.1%} to {high:.1%}), "
        f"{'at most' if at_most else 'at least'} {limit:.0%}: {'PASS' if passed else 'FAIL'}",
        flush=True,
    )
    return not passed


def fit_machine(pairs: int) -> Noise:
    """Measure, fit, store, and print what the simulation must look like."""
    measured = list(measure(pairs, PATIENCE_S))
    if len(measured) < 3:
        sys.exit(f"the machine was not quiet long enough: {len(measured)} pairs of launches; end what else runs on it")
    noise = fit(measured)
    seen = spread([paired(pair) for pair in measured])
    played = spread(played_pairs(noise, CYCLES, 600))
    levels = [block.elapsed_s / len(block.step_times_s) for pair in measured for block in pair.blocks]
    figures = {
        "workload": "lm tiny",
        "cpus": host_limits().effective_cpus,
        "pairs": len(measured),
        "cycle_sd": seen["cycle"],
        "pair_sd": seen["pair"],
        "slowest_block_over_fastest": max(levels) / min(levels),
    }
    FITTED.write_text(as_document(noise, figures), encoding="utf-8")
    print(f"fitted to {len(measured)} pairs of launches, {os.cpu_count()} CPUs: {FITTED}")
    for name, words in (("cycle", "cycles within a pair"), ("pair", "pairs")):
        print(f"  deviation of the log ratio of {words}: measured {seen[name]:.2%}, simulated {played[name]:.2%}")
    return noise


def with_costs(noise: Noise) -> Noise:
    """Of the workload whose steps take `STEP_S`."""
    return replace(noise, step_s=STEP_S, ready_s=max(noise.ready_s, READY_S), end_s=max(noise.end_s, END_S))


def describe(noise: Noise) -> None:
    """The costs and the deviations that the simulation takes."""
    print(
        f"simulated machine: steps of {noise.step_s * 1e3:.0f} ms that scatter by {noise.step_sd:.1%}, launches by "
        f"{noise.launch_sd:.1%}, the machine by "
        + " + ".join(f"{level.sd:.1%} over {level.back_s:g} s" for level in noise.machine)
        + "".join(f", a launch's own level by {level.sd:.1%} over {level.back_s:g} s" for level in noise.own)
    )
    print(f"costs: {noise.ready_s:.2f} s from request to ready, warm-up included; {noise.end_s:.2f} s to end a pair")


def simulate(noise: Noise, comparisons: int) -> int:
    """Print one line per figure; returns the misses."""
    misses = 0
    strangers = replace(noise, launch_sd=LAUNCH_PRIOR_SD)
    busy = with_costs(fitted(BUSY))
    machines = [
        ("", noise, True),
        (" in alternating launches", noise, False),
        (f", launches differing by {LAUNCH_PRIOR_SD:.1%}", strangers, True),
        (" beside other processes", busy, True),
        *((f" with {factor:g} times the noise", noise.scaled(factor), True) for factor in OTHER_MACHINES),
    ]
    for words, machine, resident in machines:
        random = Random(1)
        found = [play(machine, random, resident=resident) for _ in range(comparisons)]
        false = sum(one.verdict in ("faster", "slower") for one in found)
        misses += told(f"A against A{words}, false verdicts", false, comparisons, FALSE_FRACTION, at_most=True)
        print(f"  {ended(found)}")
    for faster, within_s, least in PLANTED:
        random = Random(2)
        found = [play(noise, random, b_is_faster=faster) for _ in range(comparisons)]
        right = sum(one.verdict == "faster" and one.elapsed_s <= within_s for one in found)
        misses += told(f"B faster by {faster:.0%}, found within {within_s:.0f} s", right, comparisons, least, False)
        print(f"  {ended(found)}")
    random = Random(3)
    for slower_by in (0.0, SLOWER_BY):
        boards = [play_search(noise, random, SETTINGS, slower_by) for _ in range(comparisons // 4)]
        apart = sum(not all(row.tied_with_best for row in board.rows) for board in boards)
        when = f" on a machine that slows by {slower_by:.0%} midway" if slower_by else ""
        what = f"{SETTINGS} equal settings{when}, not all tied in the leaderboard"
        misses += told(what, apart, len(boards), FALSE_FRACTION, at_most=True)
    return misses


def ended(found: Sequence[Played]) -> str:
    """How comparisons ended, in one line."""
    shares = ", ".join(
        f"{said} {sum(one.verdict == said for one in found) / len(found):.1%}"
        for said in ("faster", "slower", "tied", "undecided")
    )
    return f"{shares}; {median(one.elapsed_s for one in found):.0f} s and {median(one.pairs for one in found):g} pairs"


def real(number: int, max_time_s: float | None) -> int:
    """A against A in truth."""
    said = verdicts(compare_really(number, max_time_s=max_time_s))
    false = said["faster"] + said["slower"]
    print(f"  {dict(said)}")
    return told("real A against A, false verdicts", false, number, FALSE_REAL, at_most=True)


def planted(faster: float, number: int) -> int:
    """B truly faster."""
    within_s = next((limit for least, limit, _ in PLANTED if faster >= least), PLANTED[-1][1])
    found = compare_really(number, slower_by=faster)
    right = sum(one.verdict == "faster" and one.elapsed_s <= within_s for one in found)
    print(f"  {dict(verdicts(found))}")
    return told(f"real, B faster by {faster:.0%}, found within {within_s:.0f} s", right, number, RIGHT_REAL, False)


def main() -> int:
    """Print one line per figure; exit code 1 where one fails."""
    parser = argparse.ArgumentParser(prog="calibration", description=__doc__.partition("\n")[0])
    parser.add_argument("--comparisons", type=int, default=COMPARISONS)
    parser.add_argument("--fit", type=int, nargs="?", const=16, metavar="PAIRS")
    parser.add_argument("--real", type=int, metavar="N")
    parser.add_argument("--max-time", type=float, metavar="S", help="of each real comparison of A with A")
    parser.add_argument("--planted", nargs=2, action="append", default=[], metavar=("FRACTION", "N"))
    given = parser.parse_args()
    misses = 0
    if given.fit is not None:
        fit_machine(given.fit)
    if given.real is not None:
        misses += real(given.real, given.max_time)
    for fraction, number in given.planted:
        misses += planted(float(fraction), int(number))
    if given.real is None and not given.planted:
        noise = with_costs(fitted())
        describe(noise)
        misses += simulate(noise, given.comparisons)
    return int(misses > 0)


if __name__ == "__main__":
    sys.exit(main())
