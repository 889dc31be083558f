"""Looks at the first steps of a real job and says once where it is slower than its configuration promises."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

import torch
from torch.optim.optimizer import Optimizer

from gputune_tui.domain.job import Claim
from gputune_tui.trainer.script.ranks import rank_and_world_size

UNTIMED_STEPS = 20
"""The warm-up, as long as a trial's mostly is."""
LEAST_S = 10.0
LEAST_STEPS = 20
"""So much is timed: then nothing of this stays in the job."""


class Promise:
    """Times the steps of the first optimizer that steps.

    Args:
        claim: what is promised.
        samples: those of this rank so far.
        say: takes a sentence for the user.
        done: called when all has been seen.
    """

    def __init__(
        self, claim: Claim, samples: Callable[[], int], say: Callable[[str], None], done: Callable[[], None]
    ) -> None:
        self._claim = claim
        self._samples = samples
        self._say = say
        self._done = done
        self._steps = 0
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._began = 0.0
        self._samples_before = 0

    def tell_torch(self) -> None:
        """Say where the job's torch is another one."""
        if self._claim.torch is not None and self._claim.torch != torch.__version__:
            self._say(f"the settings were measured with torch {self._claim.torch}, this is {torch.__version__}")

    def look(self, optimizer: Optimizer) -> bool:
        """A step is done; returns whether all has been seen."""
        self._optimizer = self._optimizer or weakref.ref(optimizer)
        if self._optimizer() is not optimizer:
            return False
        self._steps += 1
        if self._steps == UNTIMED_STEPS:
            self._began, self._samples_before = self._now(), self._samples()
        elif self._steps >= UNTIMED_STEPS + LEAST_STEPS and time.perf_counter() - self._began >= LEAST_S:
            elapsed_s = self._now() - self._began
            self._done()
            rank, world_size = rank_and_world_size()
            if rank == 0:
                self._compare((self._samples() - self._samples_before) * world_size / elapsed_s)
            return True
        return False

    def _now(self) -> float:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()

    def _compare(self, samples_per_s: float) -> None:
        low, value = self._claim.low_samples_per_s, self._claim.samples_per_s
        if low is not None and value is not None and 0 < samples_per_s < low:
            self._say(
                f"this job runs at {samples_per_s:.4g} samples/s, below the {value:.4g} (from {low:.4g}) that were "
                "measured; is the device shared, or the machine another one?"
            )
