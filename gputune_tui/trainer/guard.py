"""Did the trial compute a training step: losses and gradient norms of its first steps, skips, and moved parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn

from gputune_tui.domain.trial import GuardRecord
from gputune_tui.trainer.faults import NonFinite
from gputune_tui.trainer.train_step import StepResult

OBSERVED_STEPS = 3
"""First optimizer steps whose loss and gradient norm are kept (shared/research tuners.md section 7: 1 to 3)."""


class HasParameters(Protocol):
    """A model, or whatever else knows what is trained."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Each once."""


class Guard:
    """Collects what the steps say of themselves; reading it waits for the device, so never inside a timed block."""

    def __init__(self, model: HasParameters) -> None:
        self._model = model
        self._before = _fingerprint(model)
        self._losses: list[float] = []
        self._gradient_norms: list[float] = []
        self._skipped = 0
        self._non_finite = 0
        self._steps = 0

    @property
    def observes(self) -> bool:
        """True while the first steps are to be run with `observe=True`."""
        return len(self._losses) < OBSERVED_STEPS

    def take(self, results: list[StepResult]) -> None:
        """Add finished steps.

        Raises:
            NonFinite: the last loss is NaN or infinite.
        """
        if results and not math.isfinite(last := self.note(results)):
            raise NonFinite(f"the loss is {last} at optimizer step {self._steps}")

    def note(self, results: list[StepResult]) -> float:
        """Add finished steps, at least one, whatever their losses are; returns the last loss."""
        losses = torch.stack([result.loss.float() for result in results]).tolist()
        for result, loss in zip(results, losses, strict=True):
            self._steps += result.steps
            self._skipped += result.skipped
            self._non_finite += not math.isfinite(loss)
            if self.observes:
                self._losses.append(loss)
                if result.gradient_norm is not None:
                    self._gradient_norms.append(float(result.gradient_norm))
        return float(losses[-1])

    def record(self) -> GuardRecord:
        """The record; compares the parameters with what they were."""
        finite_norms = tuple(norm if math.isfinite(norm) else -1.0 for norm in self._gradient_norms)
        after = _fingerprint(self._model)
        changed = None if not self._before else any(a != b for a, b in zip(after, self._before, strict=True))
        return GuardRecord(
            losses=tuple(loss for loss in self._losses if math.isfinite(loss)),
            gradient_norms=tuple(norm for norm in finite_norms if norm >= 0),
            skipped_steps=self._skipped,
            non_finite_steps=self._non_finite,
            parameters_changed=changed,
        )


def _fingerprint(model: HasParameters) -> list[tuple[float, float]]:
    """Norm and sum of each trainable parameter, without a copy of any."""
    with torch.no_grad():
        return [
            (float(torch.linalg.vector_norm(p.detach())), float(p.detach().sum()))
            for p in model.parameters()
            if p.requires_grad
        ]
