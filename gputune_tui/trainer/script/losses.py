"""Whether a loss is the plain mean over its batch, told from the operators that made it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

PASSED_ON = ("Mul", "Div", "Add", "Sub", "Neg", "ToCopy", "Squeeze", "Unsqueeze", "View", "Clone", "Alias", "Select")
"""Operators between a loss and the terms that it is made of (names of autograd's nodes)."""
SUM = 2
"""torch.nn._reduction.get_enum("sum")."""
MOST_NODES = 64


def why_no_mean(loss: Tensor) -> str:
    """What in the last operators of a loss makes it another thing than the mean over the samples; empty for nothing.

    A mean of means over equal parts of a batch is the mean over the batch; a sum, or a mean weighted by the classes
    that happen to be in a part, is not.
    """
    nodes: list[Any] = [loss.grad_fn]
    for _ in range(MOST_NODES):
        if not nodes:
            break
        node = nodes.pop()
        name = "" if node is None else str(node.name())
        if name.startswith("Sum"):
            return "it is a sum"
        if "Loss" in name and (why := _why_weighted(node)):
            return why
        if name.startswith(PASSED_ON):
            nodes += [inner for inner, _ in node.next_functions]
    return ""


def _why_weighted(node: Any) -> str:
    if getattr(node, "_saved_reduction", None) == SUM:
        return "reduction='sum'"
    if getattr(node, "_saved_weight", None) is not None:
        return "classes have weights"
    target, ignored = getattr(node, "_saved_target", None), getattr(node, "_saved_ignore_index", None)
    if isinstance(target, Tensor) and isinstance(ignored, int):
        # autograd stores a negative index as an unsigned number.
        index = ignored - (1 << 64) if ignored >= 1 << 63 else ignored
        if bool((target == index).any()):
            return "targets of ignore_index are left out"
    return ""
