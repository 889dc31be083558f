"""Throughput, step time, A/B ratios and verdicts; coverage of the intervals on simulated launches."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import pytest

from gputune_tui.domain.trial import Block, Launch, MemoryPeaks
from gputune_tui.ranking.estimates import disturbed_blocks, hodges_lehmann
from gputune_tui.ranking.rounds import ratio_between
from gputune_tui.ranking.spreads import StudySpread
from gputune_tui.ranking.statistics import (
    APART_PRIOR_DF,
    PairedLaunch,
    Ratio,
    compare,
    separated,
    step_time,
    throughput,
    unpaired_ratio,
    verdict,
)
from gputune_tui.ranking.student import t_quantile
from tests.ranking.make import blocks, complete, launch


def test_one_launch_is_its_block_median_with_the_prior_of_launches() -> None:
    found = throughput([launch(90, 95, 100, 105, 400)])
    assert found is not None
    assert found.value == pytest.approx(100)
    assert (found.launches, found.blocks, found.steps, found.confidence) == (1, 5, 10, 0.95)
    steady = throughput([launch(100, 100, 100)])
    assert steady is not None
    assert math.log(steady.high / 100) == pytest.approx(2.4469118511 * math.hypot(0.035, 0.05))
    assert found.high > steady.high, "block noise comes on top where there is one launch"


def test_several_launches_pool_their_spread_with_the_prior() -> None:
    found = throughput([launch(95.0), launch(100.0), launch(105.0)])
    assert found is not None
    logs = [math.log(x) for x in (95.0, 100.0, 105.0)]
    mean = sum(logs) / 3
    variance = (6 * (0.035**2 + 0.05**2) + sum((x - mean) ** 2 for x in logs)) / 8
    width = t_quantile(0.95, 8) * math.sqrt(variance / 3)
    assert found.value == pytest.approx(math.exp(mean))
    assert (found.low, found.high) == pytest.approx((math.exp(mean - width), math.exp(mean + width)))


def test_disturbed_blocks_do_not_stretch_the_interval_without_bound() -> None:
    calm = throughput([launch(97, 98, 99, 100, 101, 102, 103)])
    disturbed = throughput([launch(5, 98, 99, 100, 101, 102, 103)])
    assert calm is not None
    assert disturbed is not None
    assert disturbed.high / disturbed.low == pytest.approx(calm.high / calm.low, rel=0.05)


def test_more_launches_narrow_the_interval_and_more_blocks_of_one_never_pass_the_prior() -> None:
    one, many = throughput([launch(*[100.0] * 8)]), throughput([launch(*[100.0] * 800)])
    four = throughput([launch(*[100.0] * 8)] * 4)
    assert one is not None
    assert many is not None
    assert four is not None
    assert many.high == one.high
    assert four.high < one.high


def test_blocks_without_time_or_samples_do_not_count() -> None:
    bad = (Block(0, 0, 1.0), Block(8, 1, 0.0), Block(8, 1, math.nan), Block(8, 1, math.inf), Block(8, 1, -1.0))
    memory = MemoryPeaks()
    assert throughput([Launch(bad, (), 6, memory)]) is None
    assert throughput([]) is None
    found = throughput([Launch(bad, (), 6, memory), Launch((*bad, *blocks(50)), (), 6, memory)])
    assert found is not None
    assert (found.launches, found.blocks) == (1, 1)
    assert found.value == pytest.approx(50)


def test_absurd_times_stay_finite() -> None:
    found = throughput([launch(1e300), launch(1e-300)])
    assert found is not None
    assert 0 < found.low <= found.value <= found.high < math.inf


def test_step_time_interpolates_between_neighbours() -> None:
    times = tuple(float(t) for t in range(1, 22))
    found = step_time(
        [Launch((), times[::2], 6, MemoryPeaks()), Launch((), (*times[1::2], math.nan), 6, MemoryPeaks())]
    )
    assert found is not None
    assert (found.median_s, found.p95_s) == (11.0, 20.0)
    two = step_time([Launch((), (1.0, 2.0), 6, MemoryPeaks())])
    assert two is not None
    assert (two.median_s, two.p95_s) == pytest.approx((1.5, 1.95))
    assert step_time([Launch((), (), 6, MemoryPeaks())]) is None


def drifting_pair(speedup: float, drift: float, cycles: int = 4) -> PairedLaunch:
    rates: tuple[list[float], list[float]] = ([], [])
    for turn in range(4 * cycles):
        arm = (0, 1, 1, 0)[turn % 4]
        rates[arm].append(100 * (speedup if arm else 1) * math.exp(drift * turn))
    return PairedLaunch(blocks(*rates[0]), blocks(*rates[1]))


def test_a_steady_drift_cancels_out_of_a_pair() -> None:
    found = compare([drifting_pair(1.1, 0.03), drifting_pair(1.1, -0.05)])
    assert found is not None
    assert found.value == pytest.approx(1.1)
    assert found.low < 1.1 < found.high


def test_an_unfinished_pair_gives_what_it_has() -> None:
    assert compare([]) is None
    assert compare([PairedLaunch(blocks(100), ())]) is None
    short = compare([PairedLaunch(blocks(100), blocks(120))])
    assert short is not None
    assert short.value == pytest.approx(1.2)
    odd = compare([PairedLaunch(blocks(100, 100, 1), blocks(120, 120, 1000))])
    assert odd is not None
    assert odd.value == pytest.approx(1.2), "a cycle that was cut off does not count beside a whole one"
    broken = PairedLaunch((Block(8, 1, 0.0), *blocks(1, 100, 100)), blocks(1, 1, 120, 120))
    whole = compare([broken])
    assert whole is not None
    assert whole.value == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.99, 1.01, "tied"),
        (1.001, 1.02, "tied"),
        (0.98, 0.999, "tied"),
        (1 / 1.03, 1.03, "tied"),
        (1.01, 1.04, "faster"),
        (1.2, 1.3, "faster"),
        (0.9, 0.99, "slower"),
        (0.9, 1.1, "undecided"),
        (0.99, 1.04, "undecided"),
        (0.5, 1.0, "undecided"),
    ],
)
def test_verdicts(low: float, high: float, expected: str) -> None:
    assert verdict(Ratio(math.sqrt(low * high), low, high, 0.95), 0.03) == expected


def test_without_a_ratio_nothing_is_decided() -> None:
    assert verdict(None, 0.03) == "undecided"


def test_identical_pairs_are_tied_after_enough_of_them_and_not_after_one() -> None:
    pair = drifting_pair(1.0, 0.0)
    assert verdict(compare([pair]), 0.03) == "undecided"
    assert verdict(compare([pair] * 8), 0.03) == "tied"


def test_separation_takes_the_noise_of_launches_into_account() -> None:
    def measured(*rates: float) -> bool:
        slow, fast = throughput([launch(100.0)] * len(rates)), throughput([launch(rate) for rate in rates])
        assert slow is not None
        assert fast is not None
        assert separated(slow, fast) == separated(fast, slow)
        return separated(slow, fast)

    assert not measured(105.0), "two launches of one setting differ by that much"
    assert measured(130.0)
    assert measured(*[105.0] * 8), "with eight launches of each it is a difference"


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """1,000 simulated A/A studies each: launch offsets of 3.5 %, blocks of 5 %, one to five launches."""
    random = Random(7)

    def simulated(offset_sd: float) -> Launch:
        offset = random.gauss(0, offset_sd)
        return launch(*(math.exp(offset + random.gauss(0, 0.05)) for _ in range(8)))

    for count in (1, 2, 3, 5):
        pairs = [[throughput([simulated(0.035) for _ in range(count)]) for _ in range(2)] for _ in range(1000)]
        held = sum(a is not None and a.low <= 1 <= a.high for a, _ in pairs)
        apart = sum(a is not None and b is not None and separated(a, b) for a, b in pairs)
        assert held >= 930, f"{count} launches: {held}"
        assert apart <= 70, f"{count} launches: {apart}"


def test_ratios_hold_the_truth_as_often_as_they_say() -> None:
    random = Random(11)

    def pair() -> PairedLaunch:
        arms = [random.gauss(0, 0.035) for _ in range(2)]
        a, b = (blocks(*(math.exp(arm + random.gauss(0, 0.05)) for _ in range(8))) for arm in arms)
        return PairedLaunch(a, b)

    for count in (2, 3, 5, 8):
        found = [compare([pair() for _ in range(count)]) for _ in range(1000)]
        held = sum(ratio is not None and ratio.low <= 1 <= ratio.high for ratio in found)
        assert held >= 930, f"{count} pairs: {held}"


def disturbed(block: Block) -> Block:
    return replace(block, others_cpu_fraction=0.4, idle_cpu_fraction=0.0)


def test_disturbed_blocks_are_left_out_while_enough_are_quiet() -> None:
    quiet = blocks(100, 100, 100)
    noisy = tuple(map(disturbed, blocks(10, 20, 30)))
    found = throughput([replace(launch(1.0), blocks=quiet + noisy)])
    assert found is not None
    assert found.value == pytest.approx(100)
    assert disturbed_blocks([replace(launch(1.0), blocks=quiet + noisy)]) == (0, 3)
    assert disturbed_blocks([replace(launch(1.0), blocks=quiet[:2] + noisy)]) == (3, 5)


def test_a_busy_neighbour_with_cpus_to_spare_does_not_disturb() -> None:
    [block] = blocks(100)
    assert not replace(block, others_cpu_fraction=0.4, idle_cpu_fraction=0.3).is_disturbed
    assert not replace(block, others_cpu_fraction=0.04, idle_cpu_fraction=0.0).is_disturbed
    assert replace(block, others_cpu_fraction=0.0, idle_cpu_fraction=0.3, steal_fraction=0.2).is_disturbed
    assert not block.is_disturbed


def test_disturbed_cycles_are_left_out_of_a_comparison() -> None:
    a, b = blocks(100, 100, 100, 100), blocks(110, 110, 110, 110)
    broken = (disturbed(replace(b[0], elapsed_s=9.0)), *b[1:])
    found = compare([PairedLaunch(a, broken)])
    assert found is not None
    assert found.value == pytest.approx(1.1)


def test_hodges_lehmann_is_between_mean_and_median_and_bears_a_stray_value() -> None:
    assert hodges_lehmann([3.0]) == 3.0
    assert hodges_lehmann([1.0, 2.0]) == 1.5
    assert hodges_lehmann([1.0, 2.0, 3.0, 4.0, 5.0, 1000.0]) == pytest.approx(3.75, abs=0.3)


def test_launches_of_any_setting_tell_how_launches_differ() -> None:
    nothing = StudySpread([]).without()
    assert nothing == StudySpread([complete(1, launch(100.0)), complete(2, launch(50.0))]).without()
    steady = StudySpread([complete(1, *[launch(100.0)] * 4)]).without()
    study = StudySpread([complete(1, launch(100.0), launch(70.0), launch(130.0)), complete(2, launch(50.0))])
    straying = study.without()
    assert steady.sd < nothing.sd < straying.sd
    assert straying.df == nothing.df + 2
    once, strayed = throughput([launch(100.0)]), throughput([launch(100.0)], spread=straying)
    assert once is not None
    assert strayed is not None
    assert strayed.high > once.high


def test_the_own_launches_of_a_trial_are_no_prior_of_its_own() -> None:
    settings = [[launch(rate) for rate in rates] for rates in ((95.0, 100.0, 105.0), (40.0, 60.0), (7.0,))]
    trials = [complete(number, *launches) for number, launches in enumerate(settings)]
    for own, trial in enumerate(trials):
        others = StudySpread(trials[:own] + trials[own + 1 :]).without()
        left_out = StudySpread(trials).without(trial.id)
        assert (left_out.sd, left_out.df, left_out.within) == pytest.approx((others.sd, others.df, others.within))
    assert StudySpread(trials).without(0, 1, 2) == StudySpread([]).without(99)


def test_one_estimate_of_the_spread_behind_both_sides_counts_once() -> None:
    def width(count: int) -> float:
        side = throughput([launch(100.0)] * count)
        assert side is not None
        return math.log(unpaired_ratio(side, side, 0.95).high)

    variance = 0.035**2 + 0.05**2
    assert width(1) == pytest.approx(t_quantile(0.95, 6) * math.sqrt(2 * variance))
    # Three launches a side: 6 degrees of freedom in common and 2 of each side's own make (2 * 8)**2 / (4 * 6 + 2 + 2).
    assert width(3) == pytest.approx(t_quantile(0.95, 9) * math.sqrt(2 * (6 * variance / 8) / 3))


@pytest.mark.parametrize("count", [1, 3])
def test_equal_settings_are_told_apart_as_seldom_as_promised_on_machines_as_the_prior_has_them(count: int) -> None:
    """2,000 studies of three equal settings. How far launches stray differs by machine as the prior's degrees say."""
    random, apart = Random(5), 0
    for _ in range(2000):
        sd = math.hypot(0.035, 0.05) / math.sqrt(random.gammavariate(APART_PRIOR_DF / 2, 2) / APART_PRIOR_DF)
        trials = [
            complete(number, *(launch(100 * math.exp(random.gauss(0, sd))) for _ in range(count)))
            for number in (1, 2, 3)
        ]
        ratio = ratio_between(
            trials[0].launches, trials[1].launches, 0.95, StudySpread(trials).without(trials[0].id, trials[1].id)
        )
        assert ratio is not None
        apart += not ratio.low <= 1 <= ratio.high
    assert apart <= 115, "5 % is promised: 100 of 2,000, give or take 10"


def test_more_comparisons_ask_for_a_larger_difference() -> None:
    slow, fast = throughput([launch(100.0)]), throughput([launch(130.0)])
    assert slow is not None
    assert fast is not None
    assert separated(slow, fast)
    assert not separated(slow, fast, comparisons=10)
