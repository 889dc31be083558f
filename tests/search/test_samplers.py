"""Samplers ask for every distinct cell once, the reference first."""

from __future__ import annotations

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import Cells, SearchSpace
from gputune_tui.domain.trial import Failure, FailureReason, Trial, TrialState
from gputune_tui.search.grid import GridSampler
from gputune_tui.search.random import RandomSampler
from gputune_tui.search.sampler import Sampler
from tests.ranking.make import complete


def cells() -> Cells:
    return SearchSpace.parse("precision=bf16,fp32;micro_batch_size=4,8,16").cells(16, {}, "cpu")


def asked(sampler: Sampler) -> list[TrainSettings]:
    found = []
    while (settings := sampler.ask()) is not None:
        found.append(settings)
        sampler.tell(complete(len(found), settings=settings))
    assert sampler.ask() is None
    return found


def test_a_grid_runs_every_cell_once_and_the_reference_first() -> None:
    found = asked(GridSampler(cells()))
    assert found[0] == cells().reference
    assert found[0].precision == "fp32"
    assert len(found) == len(set(found)) == 6
    assert set(found) == set(cells().settings)
    assert found[1:] == [settings for settings in cells().settings if settings != found[0]], "else in the space's order"


def test_failures_of_any_order_trap_no_sampler() -> None:
    """90 fails once and 100 fits: what does not fit is no bound for what is tried."""
    for sampler in (GridSampler(cells()), RandomSampler(cells(), 1)):
        found = []
        while (settings := sampler.ask()) is not None:
            found.append(settings)
            ran_out = Failure(FailureReason.OVER_BUDGET, "it needs more") if len(found) % 2 else None
            sampler.tell(Trial(len(found), settings, TrialState.FAIL if ran_out else TrialState.COMPLETE, ran_out))
        assert set(found) == set(cells().settings)


def test_a_grid_leaves_out_what_is_done() -> None:
    done = cells().settings[:4]
    assert set(asked(GridSampler(cells(), done))) == set(cells().settings[4:])


def test_a_trial_told_unasked_is_not_asked_for() -> None:
    sampler = GridSampler(cells())
    unasked = cells().settings[0]
    sampler.tell(complete(1, settings=unasked))
    sampler.tell(complete(2, settings=TrainSettings(micro_batch_size=999)))
    assert unasked not in asked(sampler)


def test_random_follows_its_seed() -> None:
    orders = [asked(RandomSampler(cells(), seed)) for seed in (1, 1, 2, 3, 4)]
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) > 1
    assert {order[0] for order in orders} == {cells().reference}
    assert all(set(order) == set(cells().settings) for order in orders)


def test_random_stops_at_its_limit() -> None:
    assert asked(RandomSampler(cells(), 1, 1)) == [cells().reference]
    assert len(asked(RandomSampler(cells(), 1, 4))) == 4
    assert len(asked(RandomSampler(cells(), 1, 99))) == 6
