"""Stepping a knob by hand: every step leads to settings that compute the same step, and back again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputune_tui.domain.choices import BATCH, Ground, choices, knobs_for, stepped, with_value
from gputune_tui.domain.knobs import KNOB_BY_NAME, read_value, value_text
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import divisors_of

CPU = Ground("cpu", 16, 2.0)
CUDA = Ground("cuda", 256, 16.0)
KINDS = pytest.mark.parametrize("ground", [CPU, CUDA], ids=["cpu", "cuda"])

grounds = st.builds(
    Ground,
    st.sampled_from(["cpu", "cuda"]),
    st.sampled_from([1, 2, 7, 16, 36, 97, 256, 1000]),
    st.none() | st.sampled_from([0.5, 1.0, 2.0, 7.5, 16.0]),
)
steps = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, -1])), max_size=40)


def base(ground: Ground) -> TrainSettings:
    return TrainSettings(micro_batch_size=ground.global_batch_size).canonical(ground.device_kind)


@settings(max_examples=150)
@given(ground=grounds, walk=steps)
def test_wherever_one_walks_the_batch_is_the_global_one(ground: Ground, walk: list[tuple[int, int]]) -> None:
    names = knobs_for(ground)
    at = base(ground)
    for number, direction in walk:
        name = names[number % len(names)]
        after = stepped(at, name, direction, ground)
        assert after.samples_per_step == ground.global_batch_size
        assert after == after.canonical(ground.device_kind)
        assert getattr(after, name) in choices(name, at, ground)
        assert after == at or getattr(after, name) != getattr(at, name)
        for knob, value in after.as_dict().items():
            assert read_value(knob, value_text(value)) == value
        at = after


@settings(max_examples=150)
@given(ground=grounds, walk=steps, number=st.integers(0, 9))
def test_a_step_is_undone_by_the_one_back(ground: Ground, walk: list[tuple[int, int]], number: int) -> None:
    names = knobs_for(ground)
    at = base(ground)
    for step_number, direction in walk:
        at = stepped(at, names[step_number % len(names)], direction, ground)
    name = names[number % len(names)]
    for there, back in ((1, -1), (-1, 1)):
        after = stepped(at, name, there, ground)
        if after == at:
            continue
        again = stepped(after, name, back, ground)
        assert getattr(again, name) == getattr(at, name)
        # What only workers have is at its default again once they are gone.
        if name != "num_workers":
            assert again == at


@KINDS
def test_every_knob_walks_from_end_to_end(ground: Ground) -> None:
    for name in knobs_for(ground):
        at = replace(base(ground), num_workers=2).canonical(ground.device_kind)
        values = choices(name, at, ground)
        for _ in values:
            at = stepped(at, name, -1, ground)
        assert getattr(at, name) == values[0]
        walked = [getattr(at, name)]
        while (after := stepped(at, name, 1, ground)) != at:
            at = after
            walked.append(getattr(at, name))
        assert tuple(walked) == values


@KINDS
def test_each_knob_of_a_device_can_be_stepped(ground: Ground) -> None:
    names = knobs_for(ground)
    assert len(set(names)) == len(names)
    assert set(names) <= set(KNOB_BY_NAME)
    with_workers = replace(base(ground), num_workers=1).canonical(ground.device_kind)
    for name in names:
        assert len(choices(name, with_workers, ground)) > 1


def test_what_cannot_differ_has_one_value() -> None:
    for name in ("prefetch_factor", "persistent_workers", "pin_memory"):
        assert len(choices(name, base(CPU), CPU)) == 1
        assert stepped(base(CPU), name, 1, CPU) == base(CPU)
    assert "flush_denormal" not in knobs_for(CUDA)
    assert "tf32" not in choices("precision", base(CPU), CPU)


def test_a_typed_value_stays_among_the_choices() -> None:
    typed = with_value(base(CUDA), "activation_checkpointing", "segments:5", CUDA)
    assert typed is not None
    assert "segments:5" in choices("activation_checkpointing", typed, CUDA)
    many = with_value(base(CPU), "num_workers", 99, CPU)
    assert many is not None
    assert choices("num_workers", many, CPU)[-1] == 99
    assert stepped(many, "num_workers", -1, CPU).num_workers == 4


@pytest.mark.parametrize("value", [0, -1, 3, 17, "4", None, 1 << 40])
def test_what_does_not_divide_the_global_batch_is_refused(value: int | str | None) -> None:
    assert with_value(base(CPU), BATCH, value, CPU) is None


@given(st.integers(1, 2000))
def test_the_batch_walks_along_the_divisors(batch: int) -> None:
    ground = Ground("cpu", batch, None)
    at = replace(base(ground), micro_batch_size=1, accumulation_steps=batch)
    for divisor in divisors_of(batch)[1:]:
        at = stepped(at, BATCH, 1, ground)
        assert (at.micro_batch_size, at.accumulation_steps) == (divisor, batch // divisor)
