"""Properties of search spaces and of what samplers make of them."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from gputune_tui.domain.knobs import KnobValue
from gputune_tui.domain.settings import TrainSettings, settings_from_dict
from gputune_tui.domain.space import SearchSpace, divisors_of
from gputune_tui.errors import UsageError
from gputune_tui.search.grid import GridSampler
from gputune_tui.search.random import RandomSampler

CHOICES: dict[str, list[KnobValue]] = {
    "precision": ["fp32", "tf32", "bf16", "fp16"],
    "micro_batch_size": list(range(1, 13)),
    "accumulation_steps": list(range(1, 13)),
    "activation_checkpointing": ["none", "full", "every:2", "segments:3", "selective"],
    "num_workers": [0, 1, 2],
    "prefetch_factor": [None, 2, 4],
    "pin_memory": [False, True],
    "persistent_workers": [False, True],
}


@st.composite
def spaces(draw: st.DrawFn) -> SearchSpace:
    names = draw(st.lists(st.sampled_from(sorted(CHOICES)), min_size=1, max_size=4, unique=True))
    return SearchSpace(
        {n: tuple(draw(st.lists(st.sampled_from(CHOICES[n]), min_size=1, max_size=3, unique=True))) for n in names}
    )


@given(spaces())
def test_text_reads_back(space: SearchSpace) -> None:
    assert SearchSpace.parse(space.text()) == space


@given(spaces(), st.integers(1, 48), st.sampled_from(["cpu", "cuda"]))
def test_cells_are_distinct_exact_and_canonical(space: SearchSpace, batch: int, device: str) -> None:
    try:
        cells = space.cells(batch, {}, device)
    except UsageError:
        assume(False)
        raise
    combinations = 1
    for values in space.values.values():
        combinations *= len(values)
    assert len(set(cells.settings)) == len(cells.settings) == combinations - cells.dropped - cells.collapsed
    assert cells.reference in cells.settings
    for settings in cells.settings:
        assert settings.samples_per_step == batch
        assert settings.micro_batch_size in divisors_of(batch)
        assert settings == settings.canonical(device)
        assert settings_from_dict(settings.as_dict()) == settings
        assert settings.num_workers or (settings.prefetch_factor is None and not settings.persistent_workers)


@given(spaces(), st.integers(1, 48), st.integers(), st.none() | st.integers(1, 9))
def test_samplers_ask_for_each_cell_once(space: SearchSpace, batch: int, seed: int, limit: int | None) -> None:
    try:
        cells = space.cells(batch, {}, "cpu")
    except UsageError:
        assume(False)
        raise

    def asked(sampler: GridSampler) -> list[TrainSettings]:
        found = []
        while (settings := sampler.ask()) is not None:
            found.append(settings)
        return found

    grid, random = asked(GridSampler(cells)), asked(RandomSampler(cells, seed, limit))
    assert sorted(grid, key=str) == sorted(cells.settings, key=str)
    assert len(set(random)) == len(random) == min(limit or len(grid), len(grid))
    assert grid[0] == random[0] == cells.reference
