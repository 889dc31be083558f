"""Batches in whatever containers users put them: moved, counted and measured."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from gputune_tui.trainer.batch import MOST_SHAPES, ShapesSeen, move_batch, samples_in, tensor_bytes, tensors_in

META = torch.device("meta")
"""A device that any machine has and that is not the host's."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Target:
    """A user's frozen dataclass with a tensor."""

    boxes: Tensor
    name: str = "cat"
    late: Tensor = field(init=False)


class Sample(NamedTuple):
    """Tensor, string, None and a dataclass, as a user's collate may give them."""

    image: Tensor
    text: str
    nothing: None
    target: Target


class Bag(list[Any]):
    """A list whose constructor asks for more."""

    def __init__(self, items: list[Any], label: str) -> None:
        super().__init__(items)
        self.label = label


class Row(tuple[Any, ...]):
    """A tuple subclass with an attribute."""


class Movable:
    """An object that moves itself."""

    def __init__(self, where: str = "cpu") -> None:
        self.where = where

    def to(self, device: torch.device) -> Movable:
        return Movable(device.type)


class Opaque:
    """Neither container nor movable."""


def test_tensors_move_and_everything_else_passes_through() -> None:
    sample = Sample(torch.zeros(2, 3), "text", None, Target(torch.zeros(4)))
    moved = move_batch(sample, META)
    assert type(moved) is Sample
    assert moved.image.device.type == "meta"
    assert (moved.text, moved.nothing, moved.target.name) == ("text", None, "cat")
    assert moved.target.boxes.device.type == "meta"
    assert not hasattr(moved.target, "late")
    assert sample.image.device.type == "cpu"
    assert sample.target.boxes.device.type == "cpu"


def test_types_of_containers_are_kept() -> None:
    x = torch.zeros(2)
    bag, row = Bag([x, "a"], "labelled"), Row((x, 1))
    row.note = "kept"  # type: ignore[attr-defined]
    counted: dict[str, Any] = defaultdict(list, x=x)
    for batch in ([x], (x,), {"x": x}, OrderedDict(x=x), counted, bag, row):
        moved = move_batch(batch, META)
        assert type(moved) is type(batch)
        assert all(tensor.device.type == "meta" for tensor in tensors_in(moved))
        assert next(tensors_in(batch)).device.type == "cpu"
    assert move_batch(bag, META).label == "labelled"
    assert move_batch(row, META).note == "kept"
    assert move_batch(counted, META).default_factory is list
    assert move_batch(types.MappingProxyType({"x": x}), META)["x"].device.type == "meta"


def test_what_needs_no_move_is_the_same_object() -> None:
    x = torch.zeros(2)
    for batch in ([x, (x, "a")], {"x": x}, Sample(x, "", None, Target(x)), Opaque(), "text", b"bytes", None, 3, [], {}):
        assert move_batch(batch, CPU) is batch


def test_objects_that_move_themselves_do() -> None:
    assert move_batch({"o": Movable()}, META)["o"].where == "meta"
    packed = pack_sequence([torch.zeros(3, 2), torch.zeros(1, 2)])
    moved = move_batch([packed], META)[0]
    assert moved.data.device.type == "meta"
    assert moved.batch_sizes.device.type == "cpu"


def test_channels_last_is_for_images_alone() -> None:
    images, tokens = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 4, 5, dtype=torch.long)
    moved = move_batch((images, tokens, torch.zeros(2, 3)), CPU, channels_last=True)
    assert moved[0].is_contiguous(memory_format=torch.channels_last)
    assert moved[1] is tokens


def test_bytes_are_those_of_all_tensors() -> None:
    batch = {"x": torch.zeros(4, dtype=torch.float64), "t": [Target(torch.zeros(3, dtype=torch.int8)), "text"]}
    assert tensor_bytes(batch) == 35


B = 5
x1, x2, image, label = torch.zeros(B, 7), torch.zeros(B), torch.zeros(3, 8, 8), torch.tensor(1)


@pytest.mark.parametrize(
    "batch",
    [
        x1,
        [x1, x2],
        (x2, x1),
        [torch.zeros(B, 4, 3), torch.zeros(B, 4, 3)],
        {"text": ["a"] * B, "x": x1},
        {"meta": {"none": None}, "x": x1},
        [{"x": x1}, {"y": x2}],
        Sample(x1, "", None, Target(x2)),
        Target(x1),
        pack_sequence([torch.zeros(3)] * B),
        # lists of samples, as a collate_fn that returns its argument gives them
        [(torch.zeros(3), torch.zeros(4))] * B,
        [(image, 1)] * B,
        [{"image": image, "boxes": torch.zeros(2, 4)}] * B,
        [label] * B,
        [Target(torch.zeros(3))] * B,
        [torch.zeros(n) for n in range(1, B + 1)],
        # as detection models take them
        ([image] * B, [{"boxes": torch.zeros(2, 4)}] * B),
        tuple(zip(*[(image, {"boxes": torch.zeros(2, 4)})] * B, strict=True)),
        list(zip(*[(image, {"boxes": torch.zeros(2, 4)})] * B, strict=True)),
        {"images": [image] * B, "targets": [{}] * B},
        # without any tensor
        ["a"] * B,
        ("a",) * B,
        [Opaque() for _ in range(B)],
        {"names": ["a"] * B},
        (["a"] * B, ["b"] * B),
        types.SimpleNamespace(shape=(B, 3)),
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_samples_are_counted(batch: Any) -> None:
    assert samples_in(batch) == B


@pytest.mark.parametrize("batch", [None, 3, "text", label, {}, Opaque(), {"a": 1}])
def test_what_holds_no_samples_has_no_count(batch: Any) -> None:
    assert samples_in(batch) is None


values = st.recursive(
    st.one_of(st.none(), st.text(max_size=3), st.integers(), st.builds(torch.zeros, st.integers(0, 3))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(values)
def test_any_nesting_keeps_its_structure(batch: Any) -> None:
    def shape_of(value: Any) -> Any:
        if isinstance(value, Tensor):
            return tuple(value.shape)
        if isinstance(value, dict):
            return {key: shape_of(member) for key, member in value.items()}
        return type(value)(map(shape_of, value)) if isinstance(value, list | tuple) else value

    moved = move_batch(batch, META)
    assert shape_of(moved) == shape_of(batch)
    assert all(tensor.device.type == "meta" for tensor in tensors_in(moved))
    assert move_batch(batch, CPU) is batch
    assert tensor_bytes(batch) == sum(t.numel() * 4 for t in tensors_in(batch))
    samples = samples_in(batch)
    assert samples is None or samples >= 0


def test_kinds_of_batches_are_new_once() -> None:
    seen = ShapesSeen()
    for batch in ([torch.ones(4, 3), {"y": torch.ones(4)}], [torch.ones(4, 3), {"y": torch.ones(4)}], torch.ones(4, 3)):
        seen.note(batch)
    assert seen.settle() == 2
    assert seen.settle() == 0
    seen.note(torch.ones(4, 3))
    seen.note("no tensor at all")
    assert seen.settle() == 1


def test_endless_kinds_are_not_remembered_for_ever() -> None:
    seen = ShapesSeen()
    for length in range(MOST_SHAPES + 1):
        seen.note(torch.empty(0, length))
    assert seen.settle() == MOST_SHAPES + 1
    seen.note(torch.empty(1, 1))
    assert seen.settle() is None
