"""The `activation_checkpointing` knob: recompute the model's repeated blocks in the backward pass."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gputune_tui.trainer.blocks import find_blocks, split_into_segments, works_in_place
from gputune_tui.trainer.faults import SettingsNotApplicable

MATRIX_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution")
ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
KEPT_BY_SELECTIVE = frozenset(
    getattr(torch.ops.aten, name).default for name in (*MATRIX_PRODUCTS, *ATTENTION) if hasattr(torch.ops.aten, name)
)
"""Operators whose results `selective` keeps: the dear ones (measured in trial_engine.md section 7)."""
Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
_Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""What a block is called with: its input, further arguments, named arguments."""


def apply_checkpointing(model: nn.Module, spec: str, blocks: Sequence[nn.Module] | None) -> list[str]:
    """Make the blocks of `model` recompute as `spec` says; returns remarks in words.

    Modules keep their identity, names, hooks and state: only the `forward` of a block is replaced on the instance.

    Args:
        model: changed in place.
        spec: none, full, every:N (every Nth block), segments:N (N runs of blocks, each as one) or selective.
        blocks: what the workload's `checkpoint_blocks` gave; None finds them.

    Raises:
        SettingsNotApplicable: there are no repeated blocks, or not enough of them. The model's first pass raises it too
            where it calls or changes its blocks in a way that recomputation would not repeat.
    """
    if spec == "none":
        return []
    found = find_blocks(model) if blocks is None else list(blocks)
    if not found:
        raise SettingsNotApplicable("checkpoint_blocks(model) gave no blocks, so there is nothing to recompute")
    kind, _, number = spec.partition(":")
    if kind == "segments":
        return _apply_segments(found, int(number))
    chosen = [block for block in found[:: int(number or 1)] if not works_in_place(block)]
    for block in chosen:
        block.forward = RecomputedForward(block.forward, [block], selective=kind == "selective")
    what = ", except matrix products, convolutions and attention" if kind == "selective" else ""
    names = ", ".join(dict.fromkeys(type(block).__name__ for block in chosen))
    return [f"{len(chosen)} of {len(found)} blocks ({names}) recomputed{what}"]


def _apply_segments(found: list[nn.Module], count: int) -> list[str]:
    segments = split_into_segments(found, count)
    for blocks in segments:
        Segment(blocks).install()
    return [f"{len(found)} blocks recomputed in {count} segments"]


class RecomputedForward:
    """A forward function that keeps its inputs alone and runs again in the backward pass."""

    # Attributes instead of a closure: a deep copy of the model then recomputes its own blocks.
    def __init__(self, forward: Callable[..., Any], modules: Sequence[nn.Module], selective: bool = False) -> None:
        functools.update_wrapper(self, forward, updated=())
        self._forward = forward
        self._selective = selective
        inner = list(dict.fromkeys(m for module in modules for m in module.modules()))
        self._norms = [m for m in inner if isinstance(m, _NormBase)]
        self._stateful = [m for m in inner if m._buffers and not isinstance(m, _NormBase)]
        self._scratch: dict[Tensor, Tensor] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        if torch.compiler.is_compiling():
            return self._compiled(*args, **kwargs)
        # The model may go on to change a list that it passes; the recomputation must see it as it was.
        args, kwargs = _snapshot((args, kwargs))
        before = self._left_alone(args, kwargs)
        result = checkpoint(
            self._forward, *args, use_reentrant=False, preserve_rng_state=True, context_fn=self._contexts, **kwargs
        )
        if not _all_same(self._left_alone(args, kwargs), before):
            raise SettingsNotApplicable(
                "a block changes its input or a buffer in place, which recomputation would do a second time; "
                "give the workload checkpoint_blocks(model) without it"
            )
        return result

    def _compiled(self, *args: Any, **kwargs: Any) -> Any:
        """For torch.compile, which updates buffers once by itself and takes no contexts but selective's."""
        extra = {"context_fn": _selective_contexts} if self._selective else {}
        return checkpoint(self._forward, *args, use_reentrant=False, preserve_rng_state=True, **extra, **kwargs)

    def _left_alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """What the block must leave as it is, with versions: its inputs, and buffers that are no running statistics."""
        buffers = [b for m in self._stateful for b in m._buffers.values() if b is not None]
        kept = [*_leaves((args, kwargs)), *buffers]
        return [*kept, *(leaf._version for leaf in kept if isinstance(leaf, Tensor))]

    def _contexts(self) -> Contexts:
        """The contexts of the first forward pass and of its recomputation."""
        first, again = _selective_contexts() if self._selective else (contextlib.nullcontext(), None)
        return first, Recomputation(self._norms, self._scratch, again)


def _snapshot(value: Any) -> Any:
    """The same value with its lists, dicts and tuples copied."""
    if type(value) is dict:
        return {key: _snapshot(member) for key, member in value.items()}
    return type(value)(map(_snapshot, value)) if type(value) in (list, tuple) else value


def _leaves(value: Any) -> list[Any]:
    """What the lists, dicts and tuples of a value hold, in order."""
    if type(value) is dict:
        value = list(value.values())
    return [leaf for member in value for leaf in _leaves(member)] if type(value) in (list, tuple) else [value]


class Recomputation:
    """While it lasts, running statistics are written to scratch: they must not be updated by the same batch again."""

    def __init__(
        self, norms: list[_NormBase], scratch: dict[Tensor, Tensor], kept: AbstractContextManager[Any] | None
    ) -> None:
        self._norms = norms
        self._scratch = scratch
        self._kept = kept
        self._buffers: list[tuple[_NormBase, str, Tensor]] = []

    def __enter__(self) -> None:
        for norm in self._norms:
            if norm.training:
                self._buffers += [(norm, name, b) for name, b in norm._buffers.items() if b is not None]
        for norm, name, buffer in self._buffers:
            norm._buffers[name] = self._scratch_for(buffer)
        # Last, since selective's cache takes every operator from here on for one of the first pass.
        if self._kept is not None:
            self._kept.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if self._kept is not None:
            self._kept.__exit__(kind, error, trace)
        for norm, name, buffer in self._buffers:
            norm._buffers[name] = buffer
        self._buffers = []
        if isinstance(error, RuntimeError) and "has been mutated" in str(error):
            raise SettingsNotApplicable(
                "selective keeps results that this model overwrites in place (inplace=True); use full or every:N"
            ) from error

    def _scratch_for(self, buffer: Tensor) -> Tensor:
        if buffer not in self._scratch:
            self._scratch[buffer] = buffer.clone()
        return self._scratch[buffer]


def _selective_contexts() -> Contexts:
    contexts: Contexts = create_selective_checkpoint_contexts(_selective_policy)
    return contexts


def _selective_policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Keep the dear operators; of attention only that without dropout.

    A kept operator is not run again and draws no random numbers then, so every later dropout of the block would draw
    others than in the first pass.
    """
    if operator not in KEPT_BY_SELECTIVE or _dropout_of(operator, args, kwargs) > 0:
        return CheckpointPolicy.PREFER_RECOMPUTE
    return CheckpointPolicy.MUST_SAVE


def _dropout_of(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    for index, argument in enumerate(operator._schema.arguments):
        if argument.name == "dropout_p":
            return float(args[index] if index < len(args) else kwargs.get("dropout_p", 0.0))
    return 0.0


class Segment:
    """Consecutive blocks recomputed as one: the first runs all of them, the others pass its result on.

    That is exact only where the model calls the blocks one after the other, each on the result of the one before with
    the same further arguments; every call is held to that.
    """

    def __init__(self, blocks: list[nn.Module]) -> None:
        self._blocks = blocks
        self._forwards = [block.forward for block in blocks]
        self._recomputed = RecomputedForward(self._run_all, blocks)
        self._awaited = 0
        """Index of the block that must be called next; 0 between passes."""
        self._passed_on: _Call | None = None

    def install(self) -> None:
        """Take the place of the blocks' forward functions.

        Raises:
            SettingsNotApplicable: hooks watch what passes between the blocks, or a block is in the segment twice.
        """
        inner = [*(b._forward_hooks for b in self._blocks[:-1]), *(b._forward_pre_hooks for b in self._blocks[1:])]
        if any(inner) or len(set(self._blocks)) != len(self._blocks):
            raise _not_a_chain("has hooks between its blocks or calls one block several times")
        for index, block in enumerate(self._blocks):
            block.forward = functools.partial(self._call, index)

    def _call(self, index: int, *args: Any, **kwargs: Any) -> Any:
        if index != self._awaited:
            raise _not_a_chain("skips or repeats some of them")
        if not args:
            raise _not_a_chain("passes their input by name")
        self._awaited = (index + 1) % len(self._blocks)
        if index == 0:
            result = self._recomputed(*args, **kwargs)
            self._passed_on = (result, args[1:], kwargs)
        elif self._passed_on is None or not _same((args[0], args[1:], kwargs), self._passed_on):
            raise _not_a_chain("changes something between them")
        # Held no longer than needed: it is an activation.
        result = args[0] if index else self._passed_on[0]
        if self._awaited == 0:
            self._passed_on = None
        return result

    def _run_all(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        for forward in self._forwards:
            result = forward(x, *args, **kwargs)
            if isinstance(result, Tensor) != isinstance(x, Tensor):
                raise _not_a_chain("returns something else from a block than it passes in")
            x = result
        return x


def _not_a_chain(what: str) -> SettingsNotApplicable:
    return SettingsNotApplicable(
        f"segments:N needs a model that calls its blocks one after the other on each other's results; this one {what}, "
        "so use full or every:N"
    )


def _same(call: _Call, other: _Call) -> bool:
    (x, args, kwargs), (other_x, other_args, other_kwargs) = call, other
    return kwargs.keys() == other_kwargs.keys() and _all_same(
        [x, *args, *kwargs.values()], [other_x, *other_args, *(other_kwargs[name] for name in kwargs)]
    )


def _all_same(values: list[Any], others: list[Any]) -> bool:
    """The same objects, or equal whole numbers (versions)."""
    return len(values) == len(others) and all(
        a is b or (type(a) is int and a == b) for a, b in zip(values, others, strict=True)
    )
