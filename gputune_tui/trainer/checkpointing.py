"""The `activation_checkpointing` knob: recompute the model's repeated blocks in the backward pass."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from gputune_tui.trainer.faults import SettingsNotApplicable

aten = torch.ops.aten
KEPT_BY_SELECTIVE = [
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""Outputs that `selective` keeps: matrix products and attention (trial_engine.md section 2: mm + attention)."""
CONTAINERS = (nn.Sequential, nn.ModuleList)
Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def apply_checkpointing(model: nn.Module, spec: str, blocks: Sequence[nn.Module] | None) -> list[str]:
    """Make the blocks of `model` recompute as `spec` says; returns remarks in words.

    Modules keep their identity, names, hooks and state: only the `forward` of a block is replaced on the instance.

    Args:
        model: changed in place.
        spec: none, full, every:N, segments:N or selective.
        blocks: what the workload's `checkpoint_blocks` gave; None finds them.

    Raises:
        SettingsNotApplicable: there are no repeated blocks, or not enough of them.
    """
    if spec == "none":
        return []
    found = list(blocks) if blocks is not None else find_blocks(model)
    kind, _, number = spec.partition(":")
    count = int(number) if number else 0
    if kind == "segments":
        if count > len(found):
            raise SettingsNotApplicable(f"{spec} needs at least {count} blocks; the model has {len(found)}")
        for segment in split_evenly(found, count):
            _checkpoint_segment(segment)
        return [f"{len(found)} blocks recomputed in {count} segments"]
    chosen = found[::count] if kind == "every" else found
    for block in chosen:
        block.forward = _recomputed(block.forward, [block], selective=kind == "selective")
    what = " except matrix products and attention" if kind == "selective" else ""
    return [f"{len(chosen)} of {len(found)} blocks ({type(found[0]).__name__}) recomputed{what}"]


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model, in order.

    These are the composite modules of one class that stand side by side in Sequentials or ModuleLists (GPT blocks,
    encoder layers, the blocks of all ResNet stages); of several such classes the one that holds the most parameters,
    since that is where the activations are. A flat nn.Sequential without composite children: its children.

    Raises:
        SettingsNotApplicable: nothing repeats.
    """
    siblings: dict[type, list[nn.Module]] = defaultdict(list)
    repeated: set[type] = set()
    for container in model.modules():
        if isinstance(container, CONTAINERS):
            children = list(container.children())
            for cls in {type(c) for c in children if _is_composite(c)}:
                same = [c for c in children if type(c) is cls]
                siblings[cls] += same
                if len(same) > 1:
                    repeated.add(cls)
    candidates = {cls: _distinct(blocks) for cls, blocks in siblings.items() if cls in repeated}
    if candidates:
        return max(candidates.values(), key=lambda blocks: (sum(map(_parameters, blocks)), len(blocks)))
    flat = model if isinstance(model, nn.Sequential) else _only_sequential(model)
    if flat is not None and len(flat) > 1:
        return list(flat)
    raise SettingsNotApplicable(
        "no repeated blocks were found to recompute; give the workload checkpoint_blocks(model) that returns them"
    )


def split_evenly(blocks: Sequence[nn.Module], parts: int) -> list[list[nn.Module]]:
    """`parts` runs of consecutive blocks whose lengths differ by at most one."""
    size, longer = divmod(len(blocks), parts)
    runs, start = [], 0
    for index in range(parts):
        end = start + size + (index < longer)
        runs.append(list(blocks[start:end]))
        start = end
    return runs


def _is_composite(module: nn.Module) -> bool:
    return not isinstance(module, CONTAINERS) and next(module.children(), None) is not None


def _distinct(blocks: list[nn.Module]) -> list[nn.Module]:
    return list(dict.fromkeys(blocks))


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _only_sequential(model: nn.Module) -> nn.Sequential | None:
    found = [child for child in model.children() if isinstance(child, nn.Sequential)]
    return max(found, key=len) if found else None


def _recomputed(forward: Callable[..., Any], modules: list[nn.Module], selective: bool = False) -> Callable[..., Any]:
    contexts = partial(_contexts, modules, selective)

    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, context_fn=contexts, **kwargs)

    return run


def _contexts(modules: list[nn.Module], selective: bool) -> Contexts:
    """The contexts of the first forward pass and of its recomputation."""
    if not selective:
        return contextlib.nullcontext(), _norms_left_alone(modules)
    first, again = create_selective_checkpoint_contexts(KEPT_BY_SELECTIVE)
    # The copies are made outside the selective mode, which knows only the operators of the first pass.
    return first, _both(_norms_left_alone(modules), again)


@contextlib.contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with outer, inner:
        yield


@contextlib.contextmanager
def _norms_left_alone(modules: list[nn.Module]) -> Iterator[None]:
    """While it lasts, running statistics are written to copies: the recomputation must not update them again."""
    kept: list[tuple[nn.Module, str, torch.Tensor]] = []
    try:
        for root in modules:
            for norm in root.modules():
                if isinstance(norm, _NormBase):
                    for name, buffer in norm._buffers.items():
                        if buffer is not None:
                            kept.append((norm, name, buffer))
                            norm._buffers[name] = buffer.clone()
        yield
    finally:
        for norm, name, buffer in kept:
            norm._buffers[name] = buffer


def _checkpoint_segment(blocks: list[nn.Module]) -> None:
    """Let the first block of a segment run all of them as one, and the others pass its result on.

    That is exact only where the model calls the blocks one after the other, each on the result of the one before with
    the same further arguments; every call is checked.
    """
    forwards = [block.forward for block in blocks]
    passed_on: list[Any] = []

    def run_all(x: Any, *args: Any, **kwargs: Any) -> Any:
        for forward in forwards:
            x = forward(x, *args, **kwargs)
        return x

    recomputed = _recomputed(run_all, blocks)

    def head(x: Any, *args: Any, **kwargs: Any) -> Any:
        result = recomputed(x, *args, **kwargs)
        passed_on[:] = [result, args, kwargs]
        return result

    def follower(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not passed_on or x is not passed_on[0] or not _same(args, kwargs, passed_on[1], passed_on[2]):
            raise SettingsNotApplicable(
                "segments need a model that calls its blocks one after the other on each other's results; "
                "this one does not, so use full or every:N"
            )
        return x

    for block in blocks:
        block.forward = follower
    blocks[0].forward = head


def _same(
    args: tuple[Any, ...], kwargs: dict[str, Any], before: tuple[Any, ...], before_kwargs: dict[str, Any]
) -> bool:
    return (
        len(args) == len(before)
        and all(a is b for a, b in zip(args, before, strict=True))
        and kwargs.keys() == before_kwargs.keys()
        and all(kwargs[name] is before_kwargs[name] for name in kwargs)
    )
