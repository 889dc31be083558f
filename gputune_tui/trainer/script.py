"""A user's own script as a trial: its optimizer steps are counted and timed from outside by torch's global hooks."""

from __future__ import annotations

import gc
import json
import math
import os
import platform
import statistics
import sys
import time
import types
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from gputune_tui.domain.job import JOB_VARIABLE, Job
from gputune_tui.domain.plain import from_plain
from gputune_tui.domain.protocol import BlockDone, DataRead, Done, Error, Hello, Memory, Warmup
from gputune_tui.domain.trial import FailureReason, MemoryPeaks
from gputune_tui.trainer.classify import classify
from gputune_tui.trainer.contention import BlockWatch, Reading
from gputune_tui.trainer.data_temperature import DataWatch
from gputune_tui.trainer.events import EventSink
from gputune_tui.trainer.faults import OverBudget
from gputune_tui.trainer.memory import CpuMemory, CudaMemory, MemoryWatch, lift_data_limit
from gputune_tui.trainer.meter import PREFETCH_FACTOR_USED, has_settled


def prefetched_batches() -> int:
    """Batches that the workers of all loaders in use hold ready; an optimizer step takes one at least."""
    # By type: asking an object of the user's for its class may run code of theirs.
    loaders = [found for found in gc.get_objects() if issubclass(type(found), _MultiProcessingDataLoaderIter)]
    return sum(int(loader._num_workers) * int(loader._prefetch_factor or 0) for loader in loaders)


def arm() -> None:
    """Register the hooks for the job named in the environment."""
    job = from_plain(Job, json.loads(Path(os.environ[JOB_VARIABLE]).read_text(encoding="utf-8")))
    ScriptMeter(job, EventSink.from_environment(keep_for_children=True)).arm()


class ScriptMeter:
    """Counts optimizer steps of the script, finds the end of its warm-up, times blocks, then ends the script.

    The process is ended by SystemExit from the hook, so that `finally` blocks and atexit handlers of the script run.
    Without a model there is no breakdown and no guard.
    """

    def __init__(self, job: Job, events: EventSink) -> None:
        self._job = job
        self._events = events
        self._owner = os.getpid()
        self._plan = job.plan
        samples = job.workload.samples_per_step or job.global_batch_size
        assert samples is not None
        self._samples_per_step = samples
        self._memory: MemoryWatch | None = None
        self._peaks: MemoryPeaks | None = None
        self._times: list[float] = []
        self._block_times: list[float] = []
        self._last: float | None = None
        self._block_began = 0.0
        self._watch = BlockWatch()
        self._before: Reading | None = None
        self._steps_per_block = 0
        self._blocks = 0
        self._timed_s = 0.0
        self._started = time.perf_counter()
        self._finished = False
        self._data = DataWatch(job, events.beat)
        self._untimed_steps = 0
        """Steps before the next block that use up what was read before the page cache was dropped."""
        self._untimed_until = 0.0
        self._is_between_blocks = False
        self._optimizer_id: int | None = None

    def arm(self) -> None:
        """Start watching: torch is imported, no model exists yet."""
        self._watch.begin()
        register_optimizer_step_post_hook(self._after_step)
        self._chained_hook = sys.excepthook
        sys.excepthook = self._report_exception
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

    def _begin(self, optimizer: Optimizer) -> None:
        """The first optimizer step has run: this process trains. Processes that never step stay silent."""
        self._events.send(Hello(os.getpid(), platform.python_version(), torch.__version__))
        if self._memory is None and torch.cuda.is_initialized():
            device = torch.device("cuda", torch.cuda.current_device())
            self._memory = CudaMemory(device, self._job.budget_bytes, self._job.device_free_bytes)
        self._events.phase("warm_up")
        self._optimizer_id = id(optimizer)

    def _report_exception(
        self, kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
    ) -> None:
        """An exception that ends the script is told with its type, file and line; then the script's own hook runs."""
        if os.getpid() == self._owner and not self._finished:
            cap = self._memory.cap if self._memory else None
            lift_data_limit()
            self._report_memory()
            peak = self._peaks.device_peak_bytes if self._peaks else None
            self._events.send(classify(error, cap, self._job.budget_bytes, peak))
        self._chained_hook(kind, error, trace)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        # Loader workers inherit the hook by fork but never step; a second optimizer of a step is not a step of its own.
        if os.getpid() != self._owner or self._finished:
            return
        if self._optimizer_id is None:
            self._begin(optimizer)
        if id(optimizer) != self._optimizer_id:
            return
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
        if settled or over:
            step_s = max(statistics.median(self._times[-3:]), 1e-9)
            self._steps_per_block = max(1, math.ceil(plan.block_s / step_s))
            use = self._watch.since_begin()
            others, idle = (use.others_fraction, use.idle_fraction) if use else (None, None)
            self._events.send(Warmup(len(self._times) + 1, now - self._started, settled, others, idle))
            self._events.phase("measure")
            self._start_block()

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
        self._last = self._block_began = time.perf_counter()

    def _end_block(self, now: float) -> None:
        assert self._before is not None
        steps, elapsed_s = len(self._block_times), now - self._block_began
        block = self._watch.block(self._before, steps * self._samples_per_step, steps, elapsed_s)
        self._blocks += 1
        self._timed_s += elapsed_s
        self._data.end(block.samples)
        self._report_memory()
        self._events.send(BlockDone(block, tuple(self._block_times), self._plan.blocks))
        time_is_up = self._blocks >= self._plan.min_blocks and self._timed_s > self._plan.max_timed_s
        if self._blocks >= self._plan.blocks or time_is_up:
            self._finished = True
            self._events.phase("finish")
            if (reads := self._data.record(None)) is not None:
                self._events.send(DataRead(reads))
            self._events.send(Done(None))
            sys.exit(0)
        self._start_block()

    def _report_memory(self) -> None:
        if self._memory is not None and os.getpid() == self._owner:
            peaks = self._memory.peaks()
            if peaks != self._peaks:
                self._peaks = peaks
                self._events.send(Memory(peaks, self._memory.fixed_overhead_bytes, self._memory.resident_mark_bytes))
