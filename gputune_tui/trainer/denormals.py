"""Subnormal values in a training step: a CPU is up to 200 times slower at them than at any other number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gputune_tui.trainer.batch import tensors_in

SAMPLED = 4096
"""Values of each result, evenly spread."""
_SLOW_KINDS = (torch.float32, torch.float64, torch.bfloat16)
"""What a CPU computes in; float16 is widened first, where its subnormals are none."""
_NOT_WRITTEN = ("empty", "new_empty", "resize", "_empty")
"""Operators that give memory as it was."""


class DenormalWatch(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """While active, looks at a sample of what each operator gives, forward and backward (on a CPU both are run by the
    thread that calls them). Takes some ten microseconds an operator, so never around a timed step."""

    def __init__(self) -> None:
        super().__init__()
        self._values = 0
        self._subnormal = 0

    @property
    def fraction(self) -> float | None:
        """Of the values seen; None before any."""
        return self._subnormal / self._values if self._values else None

    def look(self, tensors: Iterable[Any]) -> None:
        """Count a sample of each tensor."""
        for tensor in tensors:
            if (sample := _sample(tensor)) is not None:
                small = sample.abs() < torch.finfo(sample.dtype).tiny
                self._values += sample.numel()
                self._subnormal += int((small & (sample != 0)).sum())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, and look at its result."""
        result = func(*args, **(kwargs or {}))
        if not func.__name__.startswith(_NOT_WRITTEN):
            self.look(tensors_in(result))
        return result


def _sample(tensor: Any) -> Tensor | None:
    """Up to `SAMPLED` values without a copy of the others; None of what is no dense tensor of a CPU's own numbers."""
    if type(tensor) is not Tensor and not isinstance(tensor, torch.nn.Parameter):
        return None
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.dtype not in _SLOW_KINDS:
        return None
    dense = tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
    if not dense or tensor.numel() == 0:
        return None  # a view of something that was seen
    step = -(-tensor.numel() // SAMPLED)
    return tensor.detach().as_strided((tensor.numel() // step,), (step,), tensor.storage_offset())
