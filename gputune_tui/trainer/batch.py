"""What a batch holds, whatever containers it comes in: its tensors, how many samples, and the same on a device."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Every tensor of a batch, in its order."""
    if isinstance(batch, Tensor):
        yield batch
    else:
        for member in _members(batch) or ():
            yield from tensors_in(member)


MOST_SHAPES = 10_000
"""Kinds of batches that are remembered; of more it is not counted how many were new."""


class ShapesSeen:
    """Counts the kinds of batches, by the shapes of their tensors, that were not met before."""

    def __init__(self) -> None:
        self._noted: list[Any] = []
        self._seen: set[Any] = set()

    def note(self, batch: Any) -> None:
        """Keep the shapes; about a microsecond a tensor, since this happens in timed steps."""
        self._noted.append(shapes_of(batch))

    def note_shapes(self, shapes: list[Any]) -> None:
        """Keep what `shapes_of` gave for some batches."""
        self._noted += shapes

    def settle(self) -> int | None:
        """How many of the kinds noted since the last call are new; None once there are too many to remember."""
        noted, self._noted = self._noted, []
        if len(self._seen) > MOST_SHAPES:
            return None
        before = len(self._seen)
        self._seen.update(noted)
        return len(self._seen) - before


def shapes_of(batch: Any) -> Any:
    """The shapes of its tensors, nested as they are."""
    if isinstance(batch, Tensor):
        return batch.shape
    if isinstance(batch, dict):
        return tuple(map(shapes_of, batch.values()))
    return tuple(map(shapes_of, batch if isinstance(batch, list | tuple) else _members(batch) or ()))


def tensor_bytes(batch: Any) -> int:
    """Bytes of all tensors in a batch."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))


def move_batch(batch: Any, device: torch.device, non_blocking: bool = False, channels_last: bool = False) -> Any:
    """The batch with its tensors on the device; types are kept, and what needs no move is returned as it is."""
    if isinstance(batch, Tensor):
        if channels_last and batch.dim() == 4 and batch.is_floating_point():
            return batch.to(device, non_blocking=non_blocking, memory_format=torch.channels_last)
        return batch.to(device, non_blocking=non_blocking)
    # First: such objects know best, and a PackedSequence must keep some of its tensors on the host.
    if callable(getattr(batch, "to", None)) and not isinstance(batch, type):
        return batch.to(device)
    members = _members(batch)
    if members is None:
        return batch
    moved = [move_batch(member, device, non_blocking, channels_last) for member in members]
    if all(new is old for new, old in zip(moved, members, strict=True)):
        return batch
    return _rebuilt(batch, moved)


def samples_in(batch: Any) -> int | None:
    """Samples of a batch: the first dimension of its first tensor, or the members of a list of samples.

    None where it holds neither. A list [x, y] of tensors, as torch collates it, is one batch; a list of pairs, of
    dicts, of scalars or of tensors of different lengths holds one member a sample.
    """
    size = _first_dimension(batch, inside=False)
    return size if size is not None else _first_length(batch)


def _members(batch: Any) -> list[Any] | None:
    """What a container holds; None for everything that is no container."""
    if isinstance(batch, Mapping):
        return list(batch.values())
    if isinstance(batch, list | tuple):
        return list(batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [getattr(batch, field.name, None) for field in dataclasses.fields(batch)]
    return None


def _rebuilt(batch: Any, moved: list[Any]) -> Any:
    """A container of the same type with new members; the constructors of subclasses may ask for anything."""
    if type(batch) in (list, tuple):
        return type(batch)(moved)
    if isinstance(batch, tuple):
        make: Callable[[Any, Any], Any] = tuple.__new__
        new = make(type(batch), moved)
        getattr(new, "__dict__", {}).update(getattr(batch, "__dict__", {}))
        return new
    if isinstance(batch, list):
        copied = copy.copy(batch)
        copied[:] = moved
        return copied
    if isinstance(batch, Mapping):
        return _rebuilt_mapping(batch, dict(zip(batch, moved, strict=True)))
    copied = copy.copy(batch)
    for field, value in zip(dataclasses.fields(batch), moved, strict=True):
        if hasattr(batch, field.name):
            object.__setattr__(copied, field.name, value)
    return copied


def _rebuilt_mapping(batch: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    if type(batch) is dict or not hasattr(batch, "__setitem__"):
        return values
    copied = copy.copy(batch)
    for key, value in values.items():
        copied[key] = value
    return copied


def _first_dimension(batch: Any, inside: bool) -> int | None:
    """First dimension of the first tensor or array; `inside` a batch a list of images is a list of samples too."""
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])
    shape = getattr(batch, "shape", None)
    if isinstance(shape, tuple):
        return int(shape[0]) if shape else None
    if isinstance(batch, list | tuple) and not hasattr(batch, "_fields") and _holds_samples(batch, inside):
        return len(batch)
    known = (_first_dimension(member, inside=True) for member in _members(batch) or ())
    return next((size for size in known if size is not None), None)


def _holds_samples(batch: Sequence[Any], inside: bool) -> bool:
    kinds = {_kind(item) for item in batch}
    if len(kinds) != 1:
        return False
    first = batch[0]
    if isinstance(first, Tensor):
        if first.dim() in (0, 3):
            return first.dim() == 0 or inside
        return len({len(item) for item in batch}) > 1
    if isinstance(first, Mapping):
        return True
    # torch collates pairs to a list of tensors, and zip(*samples) of images and targets has members of two kinds.
    pairs = isinstance(batch, list) and isinstance(first, tuple)
    return pairs or (dataclasses.is_dataclass(first) and not isinstance(first, type))


def _kind(value: Any) -> Any:
    """What makes two members alike: types, the keys of dicts, the number of dimensions of tensors."""
    if isinstance(value, Tensor):
        return value.dim()
    if isinstance(value, Mapping):
        return frozenset(value)
    return (type(value), *map(_kind, value)) if isinstance(value, tuple) else type(value)


def _first_length(batch: Any) -> int | None:
    """Members of the innermost first list, for batches without any tensor."""
    known = (_first_length(member) for member in _members(batch) or ())
    inner = next((size for size in known if size is not None), None)
    if inner is None and isinstance(batch, list | tuple) and not hasattr(batch, "_fields"):
        return len(batch)
    return inner
