"""One optimizer step: precision, accumulation that equals the big batch, and exactly one update per window."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.batch import move_batch, shapes_of
from gputune_tui.trainer.faults import NoData
from gputune_tui.trainer.precision import AUTOCAST_TYPES, autocast, check_parameters, grad_scaler
from gputune_tui.trainer.workload import LossResult

Mark = Callable[[str], None]


_NO_BATCH = "the loader gave no batch for an optimizer step"


class StepResult(NamedTuple):
    """What one window did, or several plain ones after each other.

    A named tuple, like `LossResult`: a frozen dataclass takes microseconds more to make.
    """

    samples: int
    """Counted over its micro-batches, not planned."""
    micro_batches: int
    left_out: bool | Tensor
    """The gradient scaler left the update out; a 0-d tensor on the device where only the device knows."""
    loss: Tensor
    """Mean loss of the (last) window, weighted as its gradients are; 0-d, detached, on the device."""
    gradient_norm: Tensor | None = None
    """Global L2 norm of the gradients of that mean loss, unscaled, when observed; 0-d."""
    steps: int = 1
    """Optimizer steps that this is of."""

    @property
    def skipped(self) -> bool:
        """The gradient scaler left the update out; reading it may wait for the device."""
        return bool(self.left_out)


class PlainSteps(NamedTuple):
    """What several plain steps did."""

    result: StepResult
    shapes: list[Any]
    """Of each batch (`batch.shapes_of`)."""
    ends: list[Any]
    """What `end` gave after each."""


class StepWorkload(Protocol):
    """What a step needs of a workload (`workload.AdaptedWorkload`)."""

    def loss(self, model: nn.Module, batch: Any) -> LossResult:
        """Loss of one micro-batch and, where it knows, the count of items it is the mean of."""

    def mean_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss alone."""

    def batch_size_of(self, batch: Any) -> int:
        """Samples in a batch."""


class TrainStep:
    """Runs windows of up to `accumulation_steps` micro-batches, one optimizer update each.

    Nothing in it waits for the device, but for what torch's own gradient scaler does.

    Raises:
        SettingsNotApplicable: fp16 over parameters that are fp16 already, or without an active scaler.
    """

    def __init__(
        self,
        workload: StepWorkload,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: TrainSettings,
        device: torch.device,
    ) -> None:
        self._workload = workload
        self._model = model
        self._optimizer = optimizer
        self._settings = settings
        self._device = device
        self._parameters: list[Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
        check_parameters(settings.precision, self._parameters)
        self._scaler = grad_scaler(settings.precision, device.type)
        self._left_out: bool | Tensor = False
        if self._scaler is not None:
            optimizer.register_step_post_hook(self._note_update)
        self._autocast = autocast(settings.precision, device.type) if settings.precision in AUTOCAST_TYPES else None
        self.is_plain = settings.accumulation_steps == 1 and self._scaler is None
        """`run_plain` may be used: a step is one batch and one update."""
        self._kept: tuple[Any, Tensor | None] = (None, None)
        """The last batch and loss of `run_plain`: the variables of a loop that goes on keep them, and what is freed
        earlier than there, the allocator gives back and asks for anew (8 % more page faults with images on a CPU)."""
        self._keeps_tensors = device.type == "cpu" and not settings.channels_last

    def run(self, window: Iterable[Any], mark: Mark | None = None, observe: bool = False) -> StepResult:
        """Run one window.

        Args:
            window: host batches; the tail of an epoch may hold fewer than planned.
            mark: called at the end of each phase: data_wait, copy, forward, backward, optimizer.
            observe: also measure the gradients' norm.

        Raises:
            NoData: the window is empty, or the workload counts no item in all of it.
        """
        self._kept = (None, None)
        self._optimizer.zero_grad(set_to_none=True)
        total = WindowTotal(self._settings.accumulation_steps)
        samples = 0
        for batch in window:
            if mark:
                mark("data_wait")
            samples += self._workload.batch_size_of(batch)
            self._micro_batch(batch, total, mark)
        if total.micro_batches == 0:
            raise NoData(_NO_BATCH)
        factor = total.correction()
        if factor is not None and (gradients := self._gradients()):
            with torch.no_grad():
                torch._foreach_mul_(gradients, factor)
        if observe and self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        norm = self._gradient_norm() if observe else None
        left_out = self._update()
        if mark:
            mark("optimizer")
        return StepResult(samples, total.micro_batches, left_out, total.mean_loss(), norm)

    def run_plain(self, batches: Iterable[Any], end: Callable[[], Any]) -> PlainSteps:
        """One step for each host batch, as `run` does them, in few words: a step of 1 ms must not feel the measuring.

        Only the last loss is kept: a detached tensor for each step costs some microseconds, and a loss that is not
        finite is seldom followed by one that is.

        Args:
            batches: as many as steps are wanted, one at least.
            end: called after each step.

        Raises:
            NoData: there is no batch.
        """
        optimizer, model, workload, autocast = self._optimizer, self._model, self._workload, self._autocast
        keeps_tensors = self._keeps_tensors
        batch, loss = self._kept
        self._kept = (None, None)
        samples, shapes, ends = 0, [], []
        for batch in batches:
            is_tensor = type(batch) is Tensor
            shapes.append(batch.shape if is_tensor else shapes_of(batch))
            optimizer.zero_grad(set_to_none=True)
            samples += workload.batch_size_of(batch)
            batch = batch if is_tensor and keeps_tensors else self._moved(batch)
            if autocast is None:
                loss = workload.mean_loss(model, batch)
            else:
                with autocast:
                    loss = workload.mean_loss(model, batch)
            loss.backward()
            optimizer.step()
            ends.append(end())
        if loss is None or not ends:
            raise NoData(_NO_BATCH)
        self._kept = batch, loss
        return PlainSteps(StepResult(samples, len(ends), False, loss.detach(), steps=len(ends)), shapes, ends)

    def _moved(self, batch: Any) -> Any:
        if self._keeps_tensors and (type(batch) is Tensor or (type(batch) in (list, tuple) and _are_tensors(batch))):
            return batch
        return move_batch(batch, self._device, self._settings.pin_memory, self._settings.channels_last)

    def rehearse(self, batch: Any) -> None:
        """Forward and backward of one host batch where memory is tightest in a window; nothing is updated.

        That is beside the gradients of an earlier micro-batch where the window accumulates. The update itself needs
        the same memory after any batch, and every step that follows makes one.
        """
        self._optimizer.zero_grad(set_to_none=True)
        total = WindowTotal(self._settings.accumulation_steps)
        for _ in range(min(2, self._settings.accumulation_steps)):
            self._micro_batch(batch, total, None)
        self._optimizer.zero_grad(set_to_none=True)

    def _micro_batch(self, batch: Any, total: WindowTotal, mark: Mark | None) -> None:
        batch = self._moved(batch)
        if mark:
            mark("copy")
        with self._autocast or contextlib.nullcontext():
            result = self._workload.loss(self._model, batch)
        if mark:
            mark("forward")
        weighted = total.add(result)
        if weighted is not None:
            (weighted if self._scaler is None else self._scaler.scale(weighted)).backward()
        if mark:
            mark("backward")

    def _update(self) -> bool | Tensor:
        """One optimizer step; tells whether the scaler left it out."""
        if self._scaler is None:
            self._optimizer.step()
            return False
        self._left_out = True
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return self._left_out

    def _note_update(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """The scaler calls a fused optimizer in any case, and tells it in `found_inf` to do nothing."""
        found_inf = getattr(optimizer, "found_inf", None)
        self._left_out = False if found_inf is None else found_inf

    def _gradient_norm(self) -> Tensor:
        norms = [torch.linalg.vector_norm(g).float().to(self._device) for g in self._gradients()]
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros((), device=self._device)

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]


def _are_tensors(members: Iterable[Any]) -> bool:
    for member in members:  # noqa: SIM110 - half the time of all() over a generator, in each timed step
        if type(member) is not Tensor:
            return False
    return True


class WindowTotal:
    """Sums a window's losses and items without waiting for the device.

    A window's loss is the mean over its items where the workload counts them, else the mean of its micro-batches. The
    number of items is known only at the window's end: gradients are summed under a guess (the first count times the
    planned micro-batches) and corrected at the end where the guess was wrong, so that equal micro-batches cost nothing.
    """

    def __init__(self, planned: int) -> None:
        self.micro_batches = 0
        self._planned = planned
        self._guess: int | Tensor | None = None
        self._items: int | Tensor = 0
        self._losses: list[Tensor] = []

    def add(self, result: LossResult) -> Tensor | None:
        """Add a micro-batch; returns the loss as it is to be differentiated, None where it counts for nothing."""
        self.micro_batches += 1
        loss, items = result.loss, 1 if result.items is None else result.items
        if self._planned == 1:
            self._losses.append(loss.detach())
            return loss
        if not isinstance(items, Tensor) and items < 1:
            # The mean over no item is NaN more often than not; the big batch has nothing from it.
            return None
        if self._guess is None:
            self._guess = (items.clamp(min=1) if isinstance(items, Tensor) else items) * self._planned
        self._items = self._items + items
        self._losses.append(loss.detach().float() * items)
        return loss * (items / self._guess)

    def correction(self) -> float | Tensor | None:
        """Factor for the gradients where the guess was not the total; None where it was.

        Raises:
            NoData: no item was counted.
        """
        if self._planned == 1:
            return None
        if self._guess is None:
            raise NoData("the workload counts no item in any batch of an optimizer step, so its loss is no mean")
        if isinstance(self._items, Tensor) or isinstance(self._guess, Tensor):
            return torch.as_tensor(self._guess / self._items)
        return None if self._items == self._guess else self._guess / self._items

    def mean_loss(self) -> Tensor:
        """The window's mean loss."""
        if self._planned == 1:
            return self._losses[0]
        return torch.stack(self._losses).sum() / self._items


def to_channels_last(model: nn.Module) -> None:
    """Give convolution weights (every 4-d parameter and buffer) the channels-last memory format, in place."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4 and tensor.is_floating_point():
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)


def batchnorm_note(model: nn.Module, settings: TrainSettings) -> str | None:
    """The remark that accumulation is no large batch for BatchNorm; None where it does not apply."""
    sees_batch = any(isinstance(m, _BatchNorm) and (m.training or not m.track_running_stats) for m in model.modules())
    if settings.accumulation_steps > 1 and sees_batch:
        return f"BatchNorm sees micro-batch {settings.micro_batch_size}"
    return None
