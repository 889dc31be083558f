"""The moments at which a training needs most memory: the longest batch and an evaluation step, outside timing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from gputune_tui.domain.protocol import Note
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.batch import move_batch, tensor_bytes
from gputune_tui.trainer.device import Device
from gputune_tui.trainer.events import EventSink
from gputune_tui.trainer.precision import autocast
from gputune_tui.trainer.seeding import generators_kept
from gputune_tui.trainer.train_step import TrainStep
from gputune_tui.trainer.workload import AdaptedWorkload

KEPT_BUFFER_BYTES = 4 << 20
"""Buffers up to this size are put back afterwards: statistics are small, and a copy of a larger one (a mask, a table
of positions, which no forward pass changes) would itself raise the peak."""
PHASES = {
    "largest_batch": "in the longest batch (largest_batch)",
    "evaluation": "in the evaluation step (eval_step)",
}
"""The phases of this module, and how a failure in them says where it happened."""


class WorstCase:
    """Runs `largest_batch(n)` through forward and backward, and `eval_step(model, batch)`, where the workload has them.

    The optimizer's state must exist already (two steps). Parameters, optimizer, generators, training mode and
    statistics of the model are afterwards what they were, so that the measured training is the same with and without.
    """

    def __init__(
        self,
        workload: AdaptedWorkload,
        model: nn.Module,
        step: TrainStep,
        settings: TrainSettings,
        device: Device,
        events: EventSink,
        report_memory: Callable[[], None],
    ) -> None:
        self._workload = workload
        self._model = model
        self._step = step
        self._settings = settings
        self._device = device
        self._events = events
        self._report_memory = report_memory
        self._largest = workload.optional("largest_batch")
        self._evaluate = workload.optional("eval_step")
        self._seen: Any = None
        """A batch of the data for the evaluation step, where the workload does not make one."""

    def watched(self, windows: Iterator[Iterable[Any]]) -> Iterator[Iterable[Any]]:
        """The windows as they are; the first batch is remembered where only the data can give one to evaluate."""
        if self._evaluate is None or self._largest is not None:
            return windows
        return self._remembering(windows)

    def _remembering(self, windows: Iterator[Iterable[Any]]) -> Iterator[Iterable[Any]]:
        yield self._kept(next(windows))
        yield from windows

    def _kept(self, window: Iterable[Any]) -> Iterator[Any]:
        for batch in window:
            self._seen = batch if self._seen is None else self._seen
            yield batch

    def run(self) -> bool:
        """Run what there is and report the peaks; True where there was something."""
        if self._largest is None and self._evaluate is None:
            return False
        with generators_kept(self._device.torch_device), buffers_kept(self._model):
            batch = self._seen
            if self._largest is not None:
                self._events.phase("largest_batch")
                batch = self._longest(self._largest)
                self._step.rehearse(batch)
                self._done()
            if self._evaluate is not None:
                self._events.phase("evaluation")
                self._evaluation(self._evaluate, batch)
                self._done()
        self._seen = None
        return True

    def _longest(self, largest_batch: Callable[..., Any]) -> Any:
        wanted = self._settings.micro_batch_size
        batch = largest_batch(wanted)
        size = self._workload.batch_size_of(batch)
        if size != wanted:
            self._events.send(Note(f"largest_batch({wanted}) holds {size} samples"))
        return batch

    def _evaluation(self, eval_step: Callable[..., Any], batch: Any) -> None:
        settings, device = self._settings, self._device.torch_device
        moved = move_batch(batch, device, settings.pin_memory, settings.channels_last)
        modes = [(module, module.training) for module in self._model.modules()]
        self._model.eval()
        try:
            with torch.no_grad(), autocast(settings.precision, device.type):
                eval_step(self._model, moved)
        finally:
            for module, training in modes:  # each its own: a frozen part stays in evaluation mode
                module.training = training

    def _done(self) -> None:
        self._device.synchronize()
        self._report_memory()


@contextlib.contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Put buffers of up to `KEPT_BUFFER_BYTES` back to what they were: a forward pass moves running statistics."""
    small = {name: b.detach().clone() for name, b in model.named_buffers() if tensor_bytes(b) <= KEPT_BUFFER_BYTES}
    try:
        yield
    finally:
        now = dict(model.named_buffers())
        with torch.no_grad():
            for name, before in small.items():
                if name in now and now[name].shape == before.shape:
                    now[name].copy_(before)
