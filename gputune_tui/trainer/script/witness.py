"""Losses and gradient norms of a script's first optimizer steps, for the guard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from gputune_tui.domain.trial import GuardRecord
from gputune_tui.trainer.guard import Guard
from gputune_tui.trainer.script.patches import Function, Patches
from gputune_tui.trainer.script.window import Window
from gputune_tui.trainer.train_step import StepResult


class Trained:
    """What an optimizer trains, in place of a model."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def parameters(self) -> Iterator[nn.Parameter]:
        """Each once."""
        seen: set[int] = set()
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter


class StepWitness:
    """Looks at each backward pass and update until the guard has seen enough; then its wrappers do nothing more."""

    def __init__(self) -> None:
        self.window: Window | None = None
        """Where several losses make one step."""
        self._loss: Tensor | None = None
        self._guard: Guard | None = None
        self._norm: Tensor | None = None
        self._is_over = False

    def install(self, patches: Patches) -> None:
        """Begin to look."""
        patches.wrap(torch.Tensor, "backward", self._seeing)

    def before_update(self, optimizer: Optimizer, *_: Any) -> None:
        """Of the optimizer whose steps count: its gradients are whole now."""
        if self._is_over:
            return
        trained = Trained(optimizer)
        self._guard = self._guard or Guard(trained)
        norms = [torch.linalg.vector_norm(p.grad).float().cpu() for p in trained.parameters() if p.grad is not None]
        self._norm = torch.linalg.vector_norm(torch.stack(norms)) if norms else None

    def after_update(self) -> None:
        """The update is done."""
        if self._is_over or self._guard is None:
            return
        if self._loss is not None:
            loss = self._loss.float().cpu()
            # A loss that is not finite ends no script: what it does about it is its own affair, and the record tells.
            self._guard.note([StepResult(0, 1, False, loss, self._norm)])
            self._is_over = not self._guard.observes
        self._loss = None

    def record(self) -> GuardRecord | None:
        """What was seen; None before the first update."""
        return None if self._guard is None else self._guard.record()

    def _seeing(self, original: Function) -> Function:
        def backward(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if not self._is_over and tensor.numel() == 1:
                share = 1.0 if self.window is None else self.window.share
                loss = tensor.detach().reshape(()) * share
                self._loss = loss if self._loss is None else self._loss + loss
            return original(tensor, *args, **kwargs)

        return backward
