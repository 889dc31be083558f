"""Runs a script for a few optimizer steps as it is, and tells what it does by itself."""

from __future__ import annotations

import atexit
import os
import platform
import sys
import time
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from gputune_tui.domain.protocol import Detected, Done, Error, Hello
from gputune_tui.domain.trial import FailureReason
from gputune_tui.trainer.events import EventSink
from gputune_tui.trainer.script.ending import Ending
from gputune_tui.trainer.script.observer import ScriptObserver
from gputune_tui.trainer.script.ranks import Ranks, trial_folder

STEPS = 4
"""The first may differ from those that follow, and a median over three forgives one of those."""
MOST_S = 60.0
"""Fewer steps do where they take this long together."""
NO_SAMPLES = (
    "its samples cannot be counted: no DataLoader feeds the training and its model is not called with a tensor whose "
    "first dimension is the batch; say --samples-per-step N"
)


class ScriptDetector:
    """Ends the script after `STEPS` optimizer steps, or with it where it makes fewer."""

    def __init__(self, observer: ScriptObserver, events: EventSink, ending: Ending) -> None:
        self._observer = observer
        self._events = events
        self._ending = ending
        self._ranks: Ranks | None = None
        self._last_step: int | None = None
        self._began = time.perf_counter()

    def arm(self) -> None:
        """Begin to count steps."""
        self._ending.install()
        register_optimizer_step_post_hook(self._after_step)
        atexit.register(self._at_exit)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._ending.is_over:
            return
        before = self._observer.steps
        self._observer.step_done(optimizer)
        if self._observer.steps == before:
            return  # of another optimizer
        if self._ranks is None or os.getpid() != self._ending.owner:
            self._begin()
        assert self._ranks is not None
        steps = self._observer.steps
        if not self._ranks.speaks:
            if self._ranks.trains_along and self._ranks.must_stop(steps):
                self._ending.is_over = True
                sys.exit(0)
            return
        self._events.beat()
        if self._last_step is not None:
            self._finish()
        elif steps >= STEPS or time.perf_counter() - self._began > MOST_S:
            if self._ranks.world_size == 1:
                self._finish()
            self._last_step = steps + 1
            self._ranks.stop_with(self._last_step)

    def _begin(self) -> None:
        self._ending.owner = os.getpid()
        self._ranks = Ranks(trial_folder())
        if self._ranks.speaks:
            self._events.send(Hello(os.getpid(), platform.python_version(), torch.__version__))
            self._events.phase("warm_up")

    def _finish(self) -> None:
        self._tell()
        sys.exit(0)

    def _at_exit(self) -> None:
        """The script has ended by itself; a failure has been told by then."""
        is_ours = self._ranks is not None and self._ranks.speaks and os.getpid() == self._ending.owner
        if is_ours and not self._ending.is_over:
            self._tell()

    def _tell(self) -> None:
        assert self._ranks is not None
        self._ending.is_over = True
        facts = self._observer.facts(self._ranks.world_size)
        if facts is None:
            self._events.send(Error(FailureReason.INVALID, NO_SAMPLES, in_workload=True))
        else:
            self._events.send(Detected(facts))
            self._events.send(Done())
        self._ranks.tell_over()
