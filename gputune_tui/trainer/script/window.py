"""One optimizer step over several iterations of a script (accumulation), and fp16's gradient scaler around them.

The script goes on calling backward(), clip_grad_norm_(), optimizer.step(), zero_grad() and scheduler.step() in every
iteration. Each loss counts by its share of the window's samples, and what belongs to a whole step waits for the last.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer
from torch.optim.swa_utils import AveragedModel

from gputune_tui.trainer.script.loaders import Refuse
from gputune_tui.trainer.script.patches import Function, Patches

_BY_TEMPLATE = "put {accumulation_steps} into the command"


class Window:
    """Where the script stands in the iterations of one optimizer step."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._sizes: Sequence[int] | None = None
        self._index = 0
        """Iterations since the epoch began."""
        self._position = 0
        """Iterations since the last update."""
        self.backwards = 0
        """Backward passes since the last update: before the first, gradients are those of the step before."""
        self.has_held_step = False
        """The last call of optimizer.step() was held back, and the epoch has gone on since."""
        self._is_exhausted = False

    @property
    def parts(self) -> int:
        """Iterations of one window."""
        return self._parts

    @property
    def is_out_of_step(self) -> bool:
        """An epoch had another number of steps than batches, so which loss had which share is not known.

        One without any was no training: the same loader may serve to evaluate, or to show a batch.
        """
        return self._is_exhausted and self._sizes is not None and self._index not in (0, len(self._sizes))

    @property
    def was_broken_off(self) -> bool:
        """The loop has left its loader before the end of the epoch."""
        return self._index > 0 and not self._is_exhausted and self._sizes is not None

    def begin_epoch(self, sizes: Sequence[int] | None) -> None:
        """A new epoch begins.

        Args:
            sizes: samples of each of its batches; None where they are all alike and no end is known.
        """
        self._sizes, self._index, self._position, self.backwards = sizes, 0, 0, 0
        self._is_exhausted = False

    def end_epoch(self) -> None:
        """The loader is exhausted: a scheduler's step after this is one of the epoch."""
        self.has_held_step = False
        self._is_exhausted = True

    @property
    def is_beyond_epoch(self) -> bool:
        """More steps than batches."""
        return self._sizes is not None and self._index >= len(self._sizes)

    @property
    def share(self) -> float:
        """Of this iteration's samples in those of its window: the weight of its mean loss."""
        if self._sizes is None or self.is_beyond_epoch:
            return 1.0 / self._parts
        start = self._index - self._position
        return self._sizes[self._index] / sum(self._sizes[start : start + self._parts])

    @property
    def is_last(self) -> bool:
        """Whether this iteration's step is the update."""
        ends_epoch = self._sizes is not None and self._index >= len(self._sizes) - 1
        return self._position == self._parts - 1 or ends_epoch

    def step(self) -> bool:
        """The script steps its optimizer; True where it is to be done."""
        last = self.is_last
        self._index += 1
        self._position = 0 if last else self._position + 1
        self.has_held_step = not last
        if last:
            self.backwards = 0
        return last


class Accumulation:
    """Holds back what belongs to a whole window, and scales losses.

    Args:
        parts: iterations of one window; 1 where only `scaler` is wanted.
        scaler: fp16's; None without it.
        refuse: ends the trial with the reason why the script cannot be run so exactly.
    """

    def __init__(self, parts: int, scaler: torch.amp.GradScaler | None, refuse: Refuse) -> None:
        self.window = Window(parts)
        self._scaler = scaler
        self._refuse = refuse
        self._optimizer: Optimizer | None = None
        self._built: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._is_inside = False
        self._unscaled = False
        self._has_stepped = False
        """The script has stepped its optimizer since the last backward pass, whether or not that was held back."""
        self._witness: tuple[Tensor, int, int] | None = None
        """A parameter, and identity and version of its gradient after the last backward pass."""

    def install(self, patches: Patches) -> None:
        """Replace the calls of a training loop."""
        patches.wrap(torch.Tensor, "backward", self._backward)
        patches.wrap(Optimizer, "zero_grad", self._zero_grad)
        patches.wrap(nn.Module, "zero_grad", self._zero_grad)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            function = getattr(nn.utils, name)
            for module in (nn.utils, nn.utils.clip_grad):
                patches.put(module, name, self._clip(function, name))
        self._hold_schedulers(patches)

    def begin_epoch(self, sizes: Sequence[int] | None) -> None:
        """The loader that feeds the training begins anew."""
        if self.window.is_out_of_step:
            self._refuse(
                "the script does not step its optimizer once for each batch of its loader, so the share of a loss is "
                f"not known; {_BY_TEMPLATE}"
            )
        if self.window.was_broken_off:
            self._refuse(
                "the script leaves its loader before the end of an epoch, after a number of batches that are smaller "
                f"now; {_BY_TEMPLATE}"
            )
        self.window.begin_epoch(sizes)
        self._witness = None

    def _backward(self, original: Function) -> Function:
        def backward(tensor: Tensor, gradient: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
            self._check_gradients()
            share = self.window.share
            if self._scaler is not None:
                tensor = self._scaler.scale(tensor)
            if share != 1.0:
                gradient = torch.full_like(tensor, share) if gradient is None else gradient * share
            result = original(tensor, gradient, *args, **kwargs)
            self.window.backwards += 1
            self._has_stepped = False
            self._remember_gradients()
            return result

        return backward

    def _check_gradients(self) -> None:
        """Between two iterations of one window nobody else may change what has been summed so far."""
        if self._witness is None or self.window.backwards == 0:
            return
        if not self._is_as_remembered(self._witness):
            self._refuse(
                "the script clears or changes gradients by hand between two backward passes, so they cannot be summed "
                f"over several iterations; {_BY_TEMPLATE}"
            )

    def _check_scaled(self) -> None:
        """What a script does to gradients by hand, it does to scaled ones."""
        if self._witness is not None and not self._is_as_remembered(self._witness):
            self._refuse(
                "the script changes gradients by hand, which are scaled under fp16; put {precision} into the command"
            )

    @staticmethod
    def _is_as_remembered(witness: tuple[Tensor, int, int]) -> bool:
        parameter, identity, version = witness
        gradient = parameter.grad
        return gradient is not None and id(gradient) == identity and gradient._version == version

    def _known_optimizer(self) -> Optimizer | None:
        """The one that steps, or before its first step the only one that there is."""
        if self._optimizer is not None or len(self._built) != 1:
            return self._optimizer
        return next(iter(self._built))

    def _remember_gradients(self) -> None:
        self._witness = None
        optimizer = self._known_optimizer()
        if optimizer is None:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if (gradient := parameter.grad) is not None:
                    self._witness = (parameter, id(gradient), gradient._version)
                    return

    def hold(self, patches: Patches) -> Callable[[Optimizer], None]:
        """What is to be done to an optimizer that has been built: its class's `step` asks here first."""

        def held(optimizer: Optimizer) -> None:
            self._built.add(optimizer)
            cls = type(optimizer)
            if not getattr(cls.step, "_gputune_holds", False):
                patches.wrap(cls, "step", self._step)
                cls.step._gputune_holds = True
                # torch has wrapped it for its hooks already, and would do so again for the next of this class.
                cls.step.hooked = True

        return held

    def _step(self, original: Function) -> Function:
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_inside:
                return original(optimizer, *args, **kwargs)
            if self._optimizer is not None and optimizer is not self._optimizer:
                self._refuse(
                    "the script steps two optimizers, and which of its losses belong to which cannot be told; "
                    f"{_BY_TEMPLATE}"
                )
            if any(value is not None for value in (*args, kwargs.get("closure"))):
                self._refuse(
                    f"the script gives its optimizer a closure, which computes the loss inside the step; {_BY_TEMPLATE}"
                )
            self._optimizer = optimizer
            self._has_stepped = True
            if not self.window.step():
                if self._witness is None:  # the optimizer was not known before its first step
                    self._remember_gradients()
                return None
            self._is_inside = True
            try:
                if self._scaler is None:
                    return original(optimizer)
                if not self._unscaled:
                    self._check_scaled()
                self._scaler.step(optimizer)
                self._scaler.update()
                return None
            finally:
                self._is_inside = False
                self._unscaled = False

        return step

    def _zero_grad(self, original: Function) -> Function:
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> None:
            if self.window.backwards == 0 or self.window.parts == 1:
                original(owner, *args, **kwargs)
            elif not self._has_stepped:
                self._refuse(
                    "the script clears gradients after a backward pass without a step, as for a batch that it leaves "
                    f"out; {_BY_TEMPLATE}"
                )

        return zero_grad

    def _clip(self, original: Function, name: str) -> Function:
        """Gradients of a whole window are clipped once; before that their norm so far is told."""

        @functools.wraps(original)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(parameters, Tensor):
                parameters = [parameters]
            parameters = list(parameters)
            if self.window.is_last:
                optimizer = self._known_optimizer()
                if self._scaler is not None and optimizer is not None and not self._unscaled:
                    self._scaler.unscale_(optimizer)
                    self._unscaled = True
                return original(parameters, *args, **kwargs)
            if name == "clip_grad_value_":
                return None
            norms = [torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None]
            return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())

        return clip

    def _hold_schedulers(self, patches: Patches) -> None:
        classes = [cls for cls in vars(torch.optim.lr_scheduler).values() if isinstance(cls, type)]
        for cls in classes:
            if issubclass(cls, LRScheduler) and "step" in vars(cls):
                patches.wrap(cls, "step", self._held)
        patches.wrap(LRScheduler, "__init__", functools.partial(self._schedulers_constructor, patches))
        patches.wrap(AveragedModel, "update_parameters", self._held)

    def _schedulers_constructor(self, patches: Patches, original: Function) -> Function:
        def construct(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            cls = type(scheduler)
            own = vars(cls).get("step")
            if cls.__module__ != LRScheduler.__module__ and own is not None and not hasattr(own, "_gputune_holds"):
                patches.wrap(cls, "step", self._held)
                cls.step._gputune_holds = True
            original(scheduler, *args, **kwargs)

        return construct

    def _held(self, original: Function) -> Function:
        """What follows an optimizer step happens with those that are done."""

        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            return None if self.window.has_held_step else original(owner, *args, **kwargs)

        return call
