"""Times a script's optimizer steps from outside: warm-up found from the data, timed blocks, the end of all ranks."""

from __future__ import annotations

import gc
import math
import os
import platform
import statistics
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from gputune_tui.domain.job import Job
from gputune_tui.domain.protocol import BlockDone, DataRead, Done, Error, Hello, Memory, Warmup
from gputune_tui.domain.protocol import Guard as GuardEvent
from gputune_tui.domain.trial import FailureReason, MemoryPeaks, StepBreakdown
from gputune_tui.trainer.contention import BlockWatch, Reading
from gputune_tui.trainer.data_temperature import DataWatch
from gputune_tui.trainer.events import EventSink
from gputune_tui.trainer.faults import OverBudget
from gputune_tui.trainer.memory import CpuMemory, CudaMemory, MemoryWatch, lift_data_limit
from gputune_tui.trainer.meter import PREFETCH_FACTOR_USED, has_settled
from gputune_tui.trainer.script.ending import Ending
from gputune_tui.trainer.script.ranks import Ranks, trial_folder
from gputune_tui.trainer.script.witness import StepWitness

MOST_STEPS_OF_OTHERS = 40
"""Optimizers that take turns (GANs) take fewer in a row; an optimizer that is silent for longer is done with.
Steps are looked at twice, before and after."""


def prefetched_batches() -> int:
    """Batches that the workers of all loaders in use hold ready; an optimizer step takes one at least."""
    # By type: asking an object of the user's for its class may run code of theirs.
    loaders = [found for found in gc.get_objects() if issubclass(type(found), _MultiProcessingDataLoaderIter)]
    return sum(int(loader._num_workers) * int(loader._prefetch_factor or 0) for loader in loaders)


class ScriptMeter:
    """Counts optimizer steps of the script, finds the end of its warm-up, times blocks, then ends the script.

    The process is ended by SystemExit from the hook, so that `finally` blocks and atexit handlers of the script run.

    Args:
        job: what is measured.
        events: takes the figures.
        witness: looks at the first steps for the guard.
        folder: where ranks find each other; None is the trial's own.
    """

    def __init__(
        self, job: Job, events: EventSink, witness: StepWitness | None = None, folder: Path | None = None
    ) -> None:
        self._job = job
        self._events = events
        self._plan = job.plan
        self._folder = folder
        self._declared = job.workload.samples_per_step or job.global_batch_size or 0
        self._samples: Callable[[], int] | None = None
        self._wait_s: Callable[[], float] | None = None
        self._witness = witness
        self.ending = Ending(job, events, self._last_peaks, lambda: self._memory.cap if self._memory else None)
        self._memory: MemoryWatch | None = None
        self._peaks: MemoryPeaks | None = None
        self._times: list[float] = []
        self._block_times: list[float] = []
        self._last: float | None = None
        self._block_began = 0.0
        self._samples_before = 0
        self._wait_before_s = 0.0
        self._waited_s = 0.0
        self._timed_steps = 0
        self._steps = 0
        """All of this process so far; ranks that exchange gradients make the same step at a time."""
        self._last_step: int | None = None
        """With which this rank ends, like the others."""
        self._watch = BlockWatch()
        self._before: Reading | None = None
        self._steps_per_block = 0
        self._prefetched: int | None = None
        settings = job.settings
        is_cut = settings is not None and "accumulation_steps" in job.script.injected
        self._batches_per_step = settings.accumulation_steps if settings is not None and is_cut else 1
        """At least so many."""
        self._blocks = 0
        self._timed_s = 0.0
        self._started = time.perf_counter()
        self._data = DataWatch(job, events.beat)
        self._untimed_steps = 0
        """Steps before the next block that use up what was read before the page cache was dropped."""
        self._untimed_until = 0.0
        self._is_between_blocks = False
        self._optimizer: weakref.ref[Optimizer] | None = None
        self._steps_of_others = 0
        self._ranks: Ranks | None = None

    def arm(self) -> None:
        """Start watching: torch is imported, no model exists yet."""
        self._watch.begin()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        self.ending.install()
        if self._job.device == "cpu":
            budget = self._job.budget_bytes
            # Loader workers are free of the cap, as those of a workload are.
            os.register_at_fork(after_in_child=lift_data_limit)
            try:
                self._memory = CpuMemory(budget, self._job.fixed_overhead_bytes, torch.get_num_threads())
            except OverBudget as fault:
                peaks = MemoryPeaks(device_peak_bytes=fault.needs_bytes)
                self._events.send(Memory(peaks, fault.needs_bytes))
                self._events.send(Error(FailureReason.OVER_BUDGET, str(fault)))
                sys.exit(1)

    def count(self, samples: Callable[[], int], wait_s: Callable[[], float] | None = None) -> None:
        """Count the samples in place of taking them as declared.

        Args:
            samples: those of this rank so far.
            wait_s: seconds that it has waited for its loader so far; None where there is none.
        """
        self._samples, self._wait_s = samples, wait_s

    def beat(self) -> None:
        """Between two steps: the script goes on. Not once all is told, or a script that did would never be ended."""
        if not self.ending.is_over:
            self._events.beat()

    def _begin(self, optimizer: Optimizer) -> None:
        """The first optimizer step: this process trains. Processes that never step stay silent."""
        self.ending.owner = os.getpid()
        self._optimizer = weakref.ref(optimizer)
        self._ranks = Ranks(self._folder or trial_folder())
        if self._memory is None and torch.cuda.is_initialized():
            device = torch.device("cuda", torch.cuda.current_device())
            self._memory = CudaMemory(device, self._job.budget_bytes, self._job.device_free_bytes)
        if self._ranks.speaks:
            self._events.send(Hello(os.getpid(), platform.python_version(), torch.__version__))
            self._events.phase("warm_up")

    def _counts(self, optimizer: Optimizer) -> bool:
        """Whether a step of this optimizer is a step of the training: of several optimizers the first counts."""
        if self.ending.is_over:
            return False
        # Ranks may be forked from a process that was armed; loader workers are, too, but never step.
        if self._optimizer is None or os.getpid() != self.ending.owner:
            self._begin(optimizer)
        assert self._optimizer is not None
        if self._optimizer() is optimizer:
            self._steps_of_others = 0
            return True
        self._steps_of_others += 1
        if self._optimizer() is not None and self._steps_of_others <= MOST_STEPS_OF_OTHERS:
            return False
        self._begin_anew(optimizer)
        return True

    def _begin_anew(self, optimizer: Optimizer) -> None:
        """Another phase of training, with an optimizer of its own: what was timed of the one before is none of it."""
        self._optimizer, self._steps_of_others = weakref.ref(optimizer), 0
        self._times, self._block_times, self._last = [], [], None
        self._steps_per_block, self._is_between_blocks = 0, False
        if self._ranks is not None and self._ranks.speaks:
            self._events.phase("warm_up")

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._witness is not None and self._counts(optimizer):
            self._witness.before_update(optimizer)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._counts(optimizer):
            return
        self._steps += 1
        if self._witness is not None:
            self._witness.after_update()
        assert self._ranks is not None
        if not self._ranks.speaks:
            self._follow(self._ranks)
            return
        if self._last_step is not None:
            self._finish()
        if torch.cuda.is_initialized() and (self._steps_per_block == 0 or self._ends_block()):
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._is_between_blocks:
            self._use_up(now)
            return
        if self._last is not None:
            (self._block_times if self._steps_per_block else self._times).append(now - self._last)
        self._last = now
        if self._steps_per_block == 0:
            self._warm_up(now)
        elif len(self._block_times) >= self._steps_per_block:
            self._end_block(now)
        else:
            self._events.beat()

    def _follow(self, ranks: Ranks) -> None:
        """One of the other ranks: leaves its peaks now and then, and ends with the one that speaks."""
        if not ranks.trains_along:
            return
        now = time.perf_counter()
        if self._memory is not None and (self._last is None or now - self._last > self._plan.block_s):
            self._last = now
            ranks.tell_peaks(self._memory.peaks())
        if ranks.must_stop(self._steps):
            self.ending.is_over = True
            sys.exit(0)

    def _ends_block(self) -> bool:
        return len(self._block_times) + 1 >= self._steps_per_block

    def _warm_up(self, now: float) -> None:
        plan = self._plan
        self._report_memory()
        self._events.beat()
        if len(self._times) < 2:
            return
        settled = has_settled(self._times) and len(self._times) >= plan.min_warmup_steps
        over = len(self._times) >= plan.max_warmup_steps or now - self._started > plan.max_warmup_s
        if (settled or over) and self._has_used_up_prefetched():
            step_s = max(statistics.median(self._times[-3:]), 1e-9)
            self._steps_per_block = max(1, math.ceil(plan.block_s / step_s))
            use = self._watch.since_begin()
            others, idle = (use.others_fraction, use.idle_fraction) if use else (None, None)
            self._events.send(Warmup(len(self._times) + 1, now - self._started, settled, others, idle))
            self._events.phase("measure")
            self._start_block()

    def _has_used_up_prefetched(self) -> bool:
        """Batches that workers prepared before make the first steps look faster than they are."""
        if self._prefetched is None:
            self._prefetched = prefetched_batches()
        return len(self._times) * self._batches_per_step >= PREFETCH_FACTOR_USED * self._prefetched

    def _start_block(self) -> None:
        self._block_times = []
        began = time.perf_counter()
        if self._data.drop_page_cache():
            now = time.perf_counter()
            self._is_between_blocks = True
            self._untimed_steps = PREFETCH_FACTOR_USED * prefetched_batches()
            # A loader that is none of torch's may have prepared batches for as long.
            self._untimed_until = now + (now - began)
        else:
            self._begin_block()

    def _use_up(self, now: float) -> None:
        self._untimed_steps -= 1
        self._events.beat()
        if self._untimed_steps <= 0 and now >= self._untimed_until:
            self._is_between_blocks = False
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self._begin_block()

    def _begin_block(self) -> None:
        self._data.begin()
        self._before = self._watch.read()
        self._samples_before = self._samples() if self._samples else 0
        self._wait_before_s = self._wait_s() if self._wait_s else 0.0
        self._last = self._block_began = time.perf_counter()

    def _samples_of(self, steps: int) -> int:
        """Samples of so many steps over all ranks, which go through the same number each."""
        if self._samples is None:
            return steps * self._declared
        assert self._ranks is not None
        return (self._samples() - self._samples_before) * self._ranks.world_size

    def _end_block(self, now: float) -> None:
        assert self._before is not None
        steps, elapsed_s = len(self._block_times), now - self._block_began
        block = self._watch.block(self._before, self._samples_of(steps), steps, elapsed_s)
        self._blocks += 1
        self._timed_steps += steps
        self._timed_s += elapsed_s
        self._waited_s += self._wait_s() - self._wait_before_s if self._wait_s else 0.0
        self._data.end(block.samples)
        self._report_memory()
        self._events.send(BlockDone(block, tuple(self._block_times), self._plan.blocks))
        time_is_up = self._blocks >= self._plan.min_blocks and self._timed_s > self._plan.max_timed_s
        if not (self._blocks >= self._plan.blocks or time_is_up):
            self._start_block()
        elif self._ranks is not None and self._ranks.world_size > 1:
            self._last_step = self._steps + 1
            self._ranks.stop_with(self._last_step)
        else:
            self._finish()

    def _finish(self) -> NoReturn:
        """Tell the rest and end the script."""
        assert self._ranks is not None
        self.ending.is_over = True
        if self._witness is not None and (record := self._witness.record()) is not None:
            self._events.send(GuardEvent(record))
        self._events.phase("finish")
        if (reads := self._data.record(None)) is not None:
            self._events.send(DataRead(reads))
        self._events.send(Done(self._breakdown()))
        self._ranks.tell_over()
        sys.exit(0)

    def _breakdown(self) -> StepBreakdown | None:
        """What can be told apart from outside: the wait for the loader."""
        if self._wait_s is None:
            return None
        total_s, wait_s = self._timed_s / self._timed_steps, self._waited_s / self._timed_steps
        return StepBreakdown(wait_s, None, None, None, None, None, max(0.0, total_s - wait_s), max(total_s, wait_s))

    def _last_peaks(self) -> MemoryPeaks | None:
        self._report_memory()
        return self._peaks

    def _report_memory(self) -> None:
        if self._memory is not None and os.getpid() == self.ending.owner:
            peaks = self._memory.peaks()
            if self._ranks is not None:
                peaks = self._ranks.largest(peaks)
            if peaks != self._peaks:
                self._peaks = peaks
                self._events.send(Memory(peaks, self._memory.fixed_overhead_bytes, self._memory.resident_mark_bytes))
