"""Properties of throughput, ratios and verdicts that hold for any blocks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.domain.trial import Block, Launch, MemoryPeaks
from gputune_tui.ranking.estimates import hodges_lehmann
from gputune_tui.ranking.spreads import StudySpread
from gputune_tui.ranking.statistics import (
    PairedLaunch,
    compare,
    separated,
    throughput,
    verdict,
)
from tests.ranking.make import complete

anything = st.builds(Block, st.integers(-1, 10**6), st.integers(0, 100), st.floats())
sane = st.builds(Block, st.integers(1, 10**6), st.integers(1, 100), st.floats(1e-6, 1e6))


def launches_of(block: st.SearchStrategy[Block]) -> st.SearchStrategy[list[Launch]]:
    blocks = st.lists(block, max_size=6).map(tuple)
    return st.lists(st.builds(Launch, blocks, st.just(()), st.just(6), st.just(MemoryPeaks())), max_size=4)


@given(launches_of(anything))
def test_no_block_whatever_breaks_throughput(launches: list[Launch]) -> None:
    found = throughput(launches)
    if found is not None:
        assert 0 < found.low <= found.value <= found.high < math.inf
        assert not separated(found, found)


@given(launches_of(sane))
def test_the_order_of_launches_and_blocks_makes_no_difference(launches: list[Launch]) -> None:
    backwards = [Launch(item.blocks[::-1], (), 6, item.memory) for item in launches[::-1]]
    found, reordered = throughput(launches), throughput(backwards)
    assert (found is None) == (reordered is None)
    if found is not None and reordered is not None:
        assert found.value == pytest.approx(reordered.value)
        assert found.high == pytest.approx(reordered.high)


@given(launches_of(sane), st.floats(0.01, 100))
def test_throughput_follows_the_clock(launches: list[Launch], factor: float) -> None:
    scaled = [
        Launch(tuple(Block(b.samples, b.steps, b.elapsed_s * factor) for b in item.blocks), (), 6, item.memory)
        for item in launches
    ]
    found, slower = throughput(launches), throughput(scaled)
    assert (found is None) == (slower is None)
    if found is not None and slower is not None:
        assert slower.value * factor == pytest.approx(found.value)
        assert slower.low * factor == pytest.approx(found.low)


paired = st.lists(st.builds(PairedLaunch, st.lists(sane, max_size=5).map(tuple), st.lists(sane, max_size=5).map(tuple)))


@given(paired, st.floats(0.001, 0.5))
def test_b_against_a_is_the_inverse_of_a_against_b(pairs: list[PairedLaunch], margin: float) -> None:
    ratio, inverse = compare(pairs), compare([PairedLaunch(pair.b, pair.a) for pair in pairs])
    assert (ratio is None) == (inverse is None)
    if ratio is not None and inverse is not None:
        assert ratio.value * inverse.value == pytest.approx(1)
        assert ratio.low * inverse.high == pytest.approx(1)
        mirrored = {"faster": "slower", "slower": "faster", "tied": "tied", "undecided": "undecided"}
        near_the_edge = any(
            math.isclose(x, y, rel_tol=1e-9) for x in (ratio.low, ratio.high) for y in (1, 1 + margin, 1 / (1 + margin))
        )
        assert near_the_edge or verdict(inverse, margin) == mirrored[verdict(ratio, margin)]


@given(st.lists(st.builds(PairedLaunch, st.lists(anything).map(tuple), st.lists(anything).map(tuple)), max_size=3))
def test_no_block_whatever_breaks_a_comparison(pairs: list[PairedLaunch]) -> None:
    ratio = compare(pairs)
    assert ratio is None or 0 < ratio.low <= ratio.value <= ratio.high < math.inf


numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)


@given(numbers, st.floats(-1e6, 1e6), st.randoms(use_true_random=False))
def test_hodges_lehmann_moves_with_its_values(values: list[float], shift: float, random: object) -> None:
    centre = hodges_lehmann(values)
    assert min(values) <= centre <= max(values)
    assert hodges_lehmann([value + shift for value in values]) == pytest.approx(centre + shift, abs=1e-6)
    assert hodges_lehmann([-value for value in values]) == pytest.approx(-centre, abs=1e-6)
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # Hypothesis gives a Random
    assert hodges_lehmann(shuffled) == centre


@given(st.lists(launches_of(anything), max_size=4))
def test_no_block_whatever_breaks_the_spread_of_launches(settings: list[list[Launch]]) -> None:
    trials = [complete(number, *launches) for number, launches in enumerate(settings)]
    study = StudySpread(trials)
    spread = study.without()
    assert 0 < spread.sd < math.inf
    assert spread.df > 0
    for trial in trials:
        own = study.without(trial.id)
        assert 0 < own.sd < math.inf
        found = throughput(trial.launches, spread=own)
        assert found is None or not separated(found, found, 5, own)
