"""SearchSpace: reading, exact divisors, settings that cannot differ, and the cell that the rest is compared with."""

from __future__ import annotations

import pytest

from gputune_tui.domain.knobs import KnobValue
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import SearchSpace, divisors_of, resolve, settings_for
from gputune_tui.errors import UsageError


def test_a_space_is_read_and_written_in_its_own_order() -> None:
    space = SearchSpace.parse(" precision = fp32 , bf16 ; micro_batch_size=8,4,8;")
    assert space.values == {"precision": ("fp32", "bf16"), "micro_batch_size": (8, 4)}
    assert space.text() == "precision=fp32,bf16;micro_batch_size=8,4"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        (" ; ;", "empty"),
        ("precision", "no values"),
        ("precision=", "no values"),
        ("precision=,,", "no values"),
        ("precision=fp32;precision=bf16", "given twice"),
        ("micro_batch=8", "did you mean 'micro_batch_size'"),
        ("micro_batch_size=8,zero", "micro_batch_size='zero' is not possible"),
    ],
)
def test_a_bad_space_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SearchSpace.parse(text)


def test_twelve_cells_of_three_knobs() -> None:
    space = SearchSpace.parse("precision=fp32,bf16;micro_batch_size=4,8,16;activation_checkpointing=none,full")
    cells = space.cells(16, {}, "cpu")
    assert len(cells.settings) == 12
    assert (cells.dropped, cells.collapsed) == (0, 0)
    assert {s.micro_batch_size * s.accumulation_steps for s in cells.settings} == {16}
    assert cells.reference == TrainSettings(micro_batch_size=16)


def test_accumulation_fixes_the_micro_batch() -> None:
    cells = SearchSpace.parse("num_workers=0,2;accumulation_steps=1,2,4").cells(16, {}, "cpu")
    assert {(s.micro_batch_size, s.accumulation_steps) for s in cells.settings} == {(16, 1), (8, 2), (4, 4)}
    assert len(cells.settings) == 6


def test_a_batch_that_does_not_divide_is_dropped_and_counted() -> None:
    cells = SearchSpace.parse("micro_batch_size=3,4,5,32").cells(16, {}, "cpu")
    assert [s.micro_batch_size for s in cells.settings] == [4]
    assert cells.dropped == 3


def test_where_nothing_divides_the_divisors_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        SearchSpace.parse("micro_batch_size=4,8").cells(7, {}, "cpu")
    assert "global batch of 7" in str(caught.value)
    assert "micro_batch_size=4,8" in str(caught.value)
    assert "divisors are 1, 7" in str(caught.value)


def test_loader_knobs_without_workers_are_one_trial() -> None:
    space = SearchSpace.parse("num_workers=0;prefetch_factor=2,4;persistent_workers=true,false")
    cells = space.cells(8, {}, "cpu")
    assert len(cells.settings) == 1
    assert cells.collapsed == 3


def test_pinning_does_nothing_on_a_cpu() -> None:
    space = SearchSpace.parse("pin_memory=true,false")
    assert len(space.cells(8, {}, "cpu").settings) == 1
    assert len(space.cells(8, {}, "cuda").settings) == 2


def test_pinning_is_on_where_there_is_a_gpu_and_nothing_is_said() -> None:
    for device_kind, pinned in (("cpu", False), ("cuda", True)):
        settings = resolve({}, {}, 8, device_kind)
        assert settings is not None
        assert settings.pin_memory is pinned
    said = resolve({"pin_memory": False}, {}, 8, "cuda")
    assert said is not None
    assert said.pin_memory is False


@pytest.mark.parametrize(
    ("chosen", "baseline", "expected"),
    [
        ({}, {}, (16, 1)),
        ({"micro_batch_size": 4}, {}, (4, 4)),
        ({"accumulation_steps": 4}, {}, (4, 4)),
        ({}, {"micro_batch_size": 8}, (8, 2)),
        ({"accumulation_steps": 4}, {"micro_batch_size": 8}, (4, 4)),
        ({"micro_batch_size": 4}, {"accumulation_steps": 8}, (4, 4)),
        ({"micro_batch_size": 8, "accumulation_steps": 2}, {"accumulation_steps": 16}, (8, 2)),
        ({"micro_batch_size": 8, "accumulation_steps": 4}, {}, None),
        ({"micro_batch_size": 32}, {}, None),
        ({"accumulation_steps": 32}, {}, None),
        ({"accumulation_steps": 3}, {}, None),
    ],
)
def test_the_missing_batch_knob_is_derived(
    chosen: dict[str, KnobValue], baseline: dict[str, KnobValue], expected: tuple[int, int] | None
) -> None:
    settings = resolve(chosen, baseline, 16, "cpu")
    assert (settings and (settings.micro_batch_size, settings.accumulation_steps)) == expected


def test_the_baseline_changes_what_is_not_searched() -> None:
    cells = SearchSpace.parse("precision=fp32,bf16").cells(8, {"num_workers": 2, "precision": "bf16"}, "cpu")
    assert all(s.num_workers == 2 and s.prefetch_factor == 2 for s in cells.settings)
    assert cells.reference.precision == "bf16"


def test_the_reference_is_the_cell_that_differs_least_from_the_baseline() -> None:
    cells = SearchSpace.parse("precision=fp16,bf16;micro_batch_size=2,8;activation_checkpointing=full,none").cells(
        16, {}, "cpu"
    )
    assert cells.reference.activation_checkpointing == "none"
    assert cells.reference.micro_batch_size == 8
    assert cells.reference in cells.settings


def test_a_contradiction_of_one_setting_is_refused_in_words() -> None:
    with pytest.raises(UsageError) as caught:
        settings_for({"micro_batch_size": 8, "accumulation_steps": 4}, {}, 16, "cpu")
    assert "micro_batch_size=8 and accumulation_steps=4 contradicts the global batch of 16" in str(caught.value)
    assert "1, 2, 4, 8, 16" in str(caught.value)


def test_divisors() -> None:
    assert divisors_of(12) == (1, 2, 3, 4, 6, 12)
    assert divisors_of(1) == (1,)
