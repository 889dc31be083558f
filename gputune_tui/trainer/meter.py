"""Timing of whole optimizer steps: warm-up found from the data, timed blocks, and a separate breakdown."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from gputune_tui.domain.job import MeasurePlan
from gputune_tui.domain.protocol import BlockDone, Warmup
from gputune_tui.domain.trial import StepBreakdown
from gputune_tui.trainer.batch import ShapesSeen
from gputune_tui.trainer.contention import BlockWatch
from gputune_tui.trainer.data_temperature import DataWatch
from gputune_tui.trainer.device import Device
from gputune_tui.trainer.events import EventSink
from gputune_tui.trainer.guard import Guard
from gputune_tui.trainer.train_step import PlainSteps, StepResult

SETTLED_FRACTION = 0.10
"""The warm-up ends when the medians of the last three and of the three steps before agree this closely."""
PREFETCH_FACTOR_USED = 2
"""Steps that use up this many times what the loader holds ready come before any timing (trial_engine.md section 5)."""
AT_ONCE_S = 0.25
"""Steps are run so long at a time, with a word to the parent and a look at the loss after them: each of these breaks
took some 90 us of a training of 5 ms steps here."""
LEAD_IN_S = 0.02
"""Steps shorter than half of this are run so long, untimed, before each block: the first steps after the reports of the
block before take longer, about 0.6 ms in all here, since caches and idle threads have to come back."""
PHASES = ("data_wait", "copy", "forward", "backward", "optimizer")


class Step(Protocol):
    """One optimizer step over a window of batches (`train_step.TrainStep`)."""

    def run(
        self, window: Iterable[Any], mark: Callable[[str], None] | None = None, observe: bool = False
    ) -> StepResult:
        """Run it; `mark` is called at the end of each phase."""

    @property
    def is_plain(self) -> bool:
        """A step is one batch, and `run_plain` does as `run` does."""

    def run_plain(self, batches: Iterator[Any], end: Callable[[], Any]) -> PlainSteps:
        """A step for each batch; `end` is called after each."""


class Meter:
    """Runs steps and times them on the device's own timeline, with a sync at both ends of a block and none inside."""

    def __init__(
        self,
        step: Step,
        windows: Iterator[Iterable[Any]],
        device: Device,
        plan: MeasurePlan,
        events: EventSink,
        guard: Guard,
        prefetched_windows: int,
        on_steps: Callable[[], None],
        watch: BlockWatch | None = None,
        data: DataWatch | None = None,
    ) -> None:
        self._step = step
        self._windows = windows
        self._device = device
        self._plan = plan
        self._events = events
        self._guard = guard
        self._prefetched_windows = prefetched_windows
        self._on_steps = on_steps
        """Called outside timing whenever steps are done: reports memory."""
        self._watch = watch or BlockWatch()
        self._data = data
        self._shapes = ShapesSeen()
        self._steps_per_block = 1
        self._steps_at_once = 1
        self._lead_in_steps = 0
        self._timed_s = 0.0
        self._blocks = 0
        self._disturbed = 0
        self._fastest_samples_per_s = 0.0

    def warm_up(self) -> None:
        """Run steps until their times have settled and everything prefetched before is used up."""
        plan, started, times = self._plan, time.perf_counter(), list[float]()
        settled = False
        while True:
            self._device.synchronize()
            begin = time.perf_counter()
            result = self._run(observe=self._guard.observes)
            self._device.synchronize()
            times.append(time.perf_counter() - begin)
            self._guard.take([result])
            self._on_steps()
            settled = has_settled(times) and len(times) >= plan.min_warmup_steps
            over = len(times) >= plan.max_warmup_steps or time.perf_counter() - started > plan.max_warmup_s
            used_up = len(times) >= PREFETCH_FACTOR_USED * self._prefetched_windows
            # Two optimizer steps at least: the optimizer's state exists from the second on.
            if used_up and len(times) >= 2 and (settled or over):
                break
        step_s = statistics.median(times[-3:])
        self._steps_per_block = max(1, math.ceil(plan.block_s / max(step_s, 1e-9)))
        self._steps_at_once = max(1, int(AT_ONCE_S / max(step_s, 1e-9)))
        lead_in = int(LEAD_IN_S / max(step_s, 1e-9))
        self._lead_in_steps = lead_in if lead_in > 1 else 0
        self._shapes.settle()
        use = self._watch.since_begin()
        self._events.send(
            Warmup(
                len(times),
                time.perf_counter() - started,
                settled,
                others_cpu_fraction=use.others_fraction if use else None,
                idle_cpu_fraction=use.idle_fraction if use else None,
            )
        )

    def use_up(self) -> None:
        """Run steps, untimed, until those batches are used up that the loader prepared while no step ran."""
        for _ in range(self._steps_to_use_up):
            self._guard.take([self._run()])
        self._device.synchronize()
        self._shapes.settle()

    def settle(self) -> None:
        """`use_up` before a block, where each block has a wait before it: a paced trial's turn, the page cache dropped.

        Blocks are at least as long from here on: otherwise a trial with loader workers would spend most of its time on
        steps that do not count.
        """
        self._steps_per_block = max(self._steps_per_block, self._steps_to_use_up)
        self.use_up()

    @property
    def _steps_to_use_up(self) -> int:
        return PREFETCH_FACTOR_USED * self._prefetched_windows or 1

    def rest(self) -> None:
        """Leave the machine to others: come back when the loader has prefetched what it may, or cannot soon."""
        if self._prefetched_windows:
            self._watch.wait_for_rest()

    def run_plan(self) -> None:
        """All timed blocks of the plan, and some more for those that were disturbed; fewer when the time is up."""
        plan = self._plan
        while self._blocks < plan.blocks + min(self._disturbed, plan.extra_blocks):
            if self._blocks >= plan.min_blocks and (self._timed_s > plan.max_timed_s or self._is_clearly_slow()):
                break
            self.block(planned=plan.blocks)

    def _is_clearly_slow(self) -> bool:
        limit = self._plan.enough_below_samples_per_s
        return limit is not None and self._fastest_samples_per_s < limit

    def block(self, planned: int = 0) -> None:
        """Time one block and report it."""
        if self._data is not None:
            if self._data.drop_page_cache():
                self.settle()
            self._data.begin()
        before = self._watch.read()
        lead_in, _ = self._run_several(self._lead_in_steps)
        self._shapes.settle()
        self._device.synchronize()
        before = before.from_here()
        begin = time.perf_counter()
        marks = [self._device.mark()]
        results, ends = self._run_several(self._steps_per_block)
        self._device.synchronize()
        elapsed_s = time.perf_counter() - begin
        block = self._watch.block(
            before,
            samples=sum(result.samples for result in results),
            steps=sum(result.steps for result in results if not result.skipped),
            elapsed_s=elapsed_s,
            new_shapes=self._shapes.settle(),
        )
        self._blocks += 1
        self._timed_s += elapsed_s
        self._disturbed += block.is_disturbed
        self._fastest_samples_per_s = max(self._fastest_samples_per_s, block.samples_per_s)
        times = tuple(self._device.seconds_between(start, end) for start, end in itertools.pairwise(marks + ends))
        if self._data is not None:
            self._data.end(block.samples + sum(result.samples for result in lead_in))
        self._guard.take([*lead_in, *results])
        self._on_steps()
        self._events.send(BlockDone(block, times, planned))

    def breakdown(self) -> StepBreakdown | None:
        """Mean seconds per step by phase over instrumented steps, each phase ended by a sync."""
        if self._plan.breakdown_steps < 1:
            return None
        sums = dict.fromkeys(PHASES, 0.0)
        total_s = 0.0
        for _ in range(self._plan.breakdown_steps):
            self._device.synchronize()
            begin = last = time.perf_counter()

            def mark(phase: str) -> None:
                nonlocal last
                self._device.synchronize()
                now = time.perf_counter()
                sums[phase] += now - last
                last = now

            result = self._run(mark)
            self._device.synchronize()
            total_s += time.perf_counter() - begin
            self._guard.take([result])
        steps = self._plan.breakdown_steps
        means = {phase: value / steps for phase, value in sums.items()}
        return StepBreakdown(
            data_wait_s=means["data_wait"],
            copy_s=means["copy"],
            forward_s=means["forward"],
            backward_s=means["backward"],
            optimizer_s=means["optimizer"],
            communication_s=None,
            other_s=max(0.0, total_s / steps - sum(means.values())),
            total_s=max(total_s / steps, sum(means.values())),
        )

    def run_under(self, context: AbstractContextManager[Any]) -> None:
        """Run one step within a context, untimed; none where the plan wants no instrumented steps."""
        if self._plan.breakdown_steps > 0:
            with context:
                result = self._run()
            self._guard.take([result])

    def _run(self, mark: Callable[[str], None] | None = None, observe: bool = False) -> StepResult:
        result = self._step.run(self._watched(next(self._windows)), mark, observe)
        self._events.beat()
        return result

    def _run_several(self, steps: int) -> tuple[list[StepResult], list[Any]]:
        """So many steps, and a mark after each."""
        results, marks = list[StepResult](), list[Any]()
        while (left := steps - len(marks)) > 0:
            if self._step.is_plain:
                batches = itertools.chain.from_iterable(self._windows)
                few = itertools.islice(batches, min(left, self._steps_at_once))
                result, shapes, ends = self._step.run_plain(few, self._device.mark)
                self._shapes.note_shapes(shapes)
                self._events.beat()
            else:
                result, ends = self._run(), [self._device.mark()]
            results.append(result)
            marks += ends
        return results, marks

    def _watched(self, window: Iterable[Any]) -> Iterator[Any]:
        """The window's batches; a step of many slow ones says between them that it goes on."""
        for number, batch in enumerate(window):
            if number:
                self._events.beat()
            self._shapes.note(batch)
            yield batch


def has_settled(times: list[float]) -> bool:
    """True when the medians of the last three and of the three steps before agree within `SETTLED_FRACTION`."""
    if len(times) < 6:
        return False
    last, before = statistics.median(times[-3:]), statistics.median(times[-6:-3])
    return abs(last - before) <= SETTLED_FRACTION * before
