"""Timing, with a clock that only passes when something takes time: every figure is exact."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gputune_tui.domain.job import MeasurePlan
from gputune_tui.domain.protocol import BlockDone, Warmup
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import Block
from gputune_tui.trainer import meter as meter_module
from gputune_tui.trainer.contention import BlockWatch
from gputune_tui.trainer.device import CpuDevice
from gputune_tui.trainer.faults import NonFinite
from gputune_tui.trainer.guard import Guard
from gputune_tui.trainer.meter import Meter, has_settled
from gputune_tui.trainer.train_step import TrainStep
from gputune_tui.trainer.workload import LossResult
from tests.trainer.scripted import Clock, Loader, Recorder, ScriptedCpu, ScriptedDevice, ScriptedStep

PLAN = MeasurePlan()
STEP_S = 1 / 16
"""Powers of two, so that sums are exact and half a second is a whole number of steps."""
FAST_S = 1 / 64


class Bench:
    """A meter and everything that is scripted around it."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        seconds: Callable[[int], float] = lambda _run: STEP_S,
        plan: MeasurePlan = PLAN,
        prefetched: int = 0,
        make_s: float = 0.0,
        sizes: Sequence[Sequence[int]] = ((8,),),
    ) -> None:
        self.clock = Clock()
        monkeypatch.setattr(meter_module, "time", self.clock)
        self.device = ScriptedDevice(self.clock)
        self.step = ScriptedStep(self.clock, self.device, seconds)
        self.loader = Loader(self.clock, prefetched, make_s)
        self.events = Recorder()
        self.guard = Guard(nn.Linear(1, 1))
        self.cpu = BlockWatch(ScriptedCpu())
        self.reports = 0
        self.report_s = 0.0
        self.meter = Meter(
            self.step,
            self.loader.windows(sizes),
            self.device,
            plan,
            self.events,
            self.guard,
            prefetched,
            self._report,
            self.cpu,
        )

    def _report(self) -> None:
        self.reports += 1
        self.clock.wait(self.report_s)

    @property
    def warmup(self) -> Warmup:
        [warmup] = [event for event in self.events.events if isinstance(event, Warmup)]
        return warmup

    @property
    def done(self) -> list[BlockDone]:
        return [event for event in self.events.events if isinstance(event, BlockDone)]

    @property
    def blocks(self) -> list[Block]:
        return [event.block for event in self.done]


def test_queued_work_is_waited_for_at_the_ends_of_a_block_and_not_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.meter.warm_up()
    before = len(bench.device.synced_at)
    bench.meter.block()
    [block] = bench.blocks
    assert block.steps == 8
    assert block.elapsed_s == 8 * STEP_S
    assert bench.done[0].step_times_s == (STEP_S,) * 8
    assert len(bench.device.synced_at) - before == 2


def test_work_left_from_before_is_not_in_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.meter.warm_up()
    bench.device.launch(30.0)
    bench.meter.block()
    assert bench.blocks[0].elapsed_s == 0.5


def test_a_slow_first_step_is_in_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda run: 3.0 if run == 0 else FAST_S)
    bench.meter.warm_up()
    bench.meter.run_plan()
    assert bench.warmup == Warmup(PLAN.min_warmup_steps, 3.0 + 5 * FAST_S, True)
    assert len(bench.blocks) == PLAN.blocks
    for block in bench.blocks:
        assert block.samples_per_s == 8 / FAST_S
        assert block.steps == 32


@pytest.mark.parametrize("slow_steps", [2, 5, 12])
def test_the_warm_up_lasts_while_steps_get_faster(monkeypatch: pytest.MonkeyPatch, slow_steps: int) -> None:
    bench = Bench(monkeypatch, lambda run: 2.0 / (run + 1) if run < slow_steps else 0.01)
    bench.meter.warm_up()
    assert bench.warmup.steps >= max(PLAN.min_warmup_steps, slow_steps)
    assert bench.warmup.settled
    bench.meter.block()
    assert bench.blocks[0].samples_per_s == pytest.approx(800)


def test_times_that_never_settle_end_the_warm_up_at_its_limit_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda run: 0.01 * 1.5 ** (run % 7), MeasurePlan(max_warmup_steps=9))
    monkeypatch.setattr(meter_module, "has_settled", lambda _times: False)
    bench.meter.warm_up()
    assert bench.warmup.steps == 9
    assert not bench.warmup.settled


def test_long_steps_end_the_warm_up_by_time_but_never_before_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda _run: 100.0)
    bench.meter.warm_up()
    assert bench.warmup == Warmup(2, 200.0, False)


def test_steps_of_equal_length_settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.meter.warm_up()
    assert bench.warmup == Warmup(PLAN.min_warmup_steps, PLAN.min_warmup_steps * STEP_S, True)


@pytest.mark.parametrize("prefetched", [1, 4, 20])
def test_prefetched_windows_are_used_up_before_any_timing(monkeypatch: pytest.MonkeyPatch, prefetched: int) -> None:
    # The loader makes a window in 100 ms, a step takes 10 ms: measured too early it would look ten times faster.
    bench = Bench(monkeypatch, lambda _run: 0.01, prefetched=prefetched, make_s=0.1)
    bench.meter.warm_up()
    assert bench.warmup.steps >= 2 * prefetched
    bench.meter.run_plan()
    for block in bench.blocks:
        assert block.samples_per_s == pytest.approx(8 / 0.1, rel=0.01)


def test_a_paced_trial_uses_up_what_the_loader_prepared_while_it_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda _run: 0.01, prefetched=3, make_s=0.1)
    bench.meter.warm_up()
    for _ in range(2):
        bench.clock.wait(60.0)
        taken = bench.loader.taken
        bench.meter.settle()
        assert bench.loader.taken - taken == 6
        bench.meter.block()
    for block in bench.blocks:
        assert block.samples_per_s == pytest.approx(80.0, rel=0.01)


def test_a_paced_block_is_at_least_as_long_as_what_came_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda _run: 0.5, prefetched=3)
    bench.meter.warm_up()
    bench.meter.settle()
    bench.meter.block()
    assert bench.blocks[0].steps == 6


def test_using_up_what_was_prepared_once_lengthens_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda _run: 0.25, prefetched=3, plan=MeasurePlan(blocks=4, min_blocks=4))
    bench.meter.warm_up()
    taken = bench.loader.taken
    bench.meter.use_up()
    assert bench.loader.taken - taken == 6
    bench.meter.run_plan()
    assert [block.steps for block in bench.blocks] == [2] * 4


def test_without_prefetch_a_paced_trial_still_takes_one_step_before_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.meter.settle()
    assert bench.step.runs == 1
    assert bench.device.synced_at == [1024.0 + STEP_S]


@pytest.mark.parametrize(("step_s", "steps"), [(FAST_S, 32), (0.3, 2), (0.5, 1), (2.0, 1)])
def test_a_block_takes_whole_steps_for_half_a_second(
    monkeypatch: pytest.MonkeyPatch, step_s: float, steps: int
) -> None:
    bench = Bench(monkeypatch, lambda _run: step_s)
    bench.meter.warm_up()
    bench.meter.run_plan()
    assert {block.steps for block in bench.blocks} == {steps}
    assert {event.planned for event in bench.done} == {PLAN.blocks}


@pytest.mark.parametrize(("limit_s", "blocks"), [(1000.0, 8), (9.0, 5), (0.0, 4)])
def test_the_plan_is_cut_when_its_time_is_up_but_not_below_its_minimum(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, blocks: int
) -> None:
    bench = Bench(monkeypatch, lambda _run: 2.0, MeasurePlan(max_timed_s=limit_s))
    bench.meter.warm_up()
    bench.meter.run_plan()
    assert len(bench.blocks) == blocks


@pytest.mark.parametrize(("limit", "blocks"), [(5.0, 4), (4.0, 8), (3.0, 8), (None, 8)])
def test_a_setting_that_is_slower_in_every_block_needs_few(
    monkeypatch: pytest.MonkeyPatch, limit: float | None, blocks: int
) -> None:
    bench = Bench(monkeypatch, lambda _run: 2.0, MeasurePlan(enough_below_samples_per_s=limit, max_timed_s=1000))
    bench.meter.warm_up()
    bench.meter.run_plan()
    assert len(bench.blocks) == blocks


def test_samples_are_counted_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ten samples in batches of four, two epochs: 4, 4, 2, 4, 4, 2.
    bench = Bench(monkeypatch, lambda _run: 0.084, sizes=((4,), (4,), (2,)))
    bench.meter.warm_up()
    bench.meter.block()
    assert bench.blocks[0].samples == 20


def test_every_batch_of_a_window_counts_and_says_that_the_trial_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, sizes=((4, 4, 4, 3),))
    bench.meter.warm_up()
    bench.meter.block()
    assert bench.blocks[0].samples == 120
    assert bench.events.beats == 4 * bench.step.runs, "between batches and after each step"


def test_a_step_that_does_not_ask_for_the_end_of_its_window_says_that_the_trial_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    bench.step.most_batches = 1
    bench.meter.warm_up()
    bench.meter.block()
    assert bench.step.runs == bench.warmup.steps + 8
    assert bench.events.beats == bench.step.runs


class SumOfOne:
    """The least that `TrainStep` needs of a workload; `work` is done in each step."""

    def __init__(self, work: Callable[[], None] = lambda: None) -> None:
        self._work = work

    def loss(self, model: nn.Module, batch: torch.Tensor) -> LossResult:
        return LossResult(self.mean_loss(model, batch), None)

    def mean_loss(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        self._work()
        return model(batch).mean()

    def batch_size_of(self, batch: torch.Tensor) -> int:
        return len(batch)


def real_training(
    bench: Bench, accumulation_steps: int, lengths: Iterator[int] | None = None, step_s: float = STEP_S
) -> nn.Linear:
    """Let the bench time real steps; `lengths` are those of the batches."""
    model = nn.Linear(1, 1)
    workload = SumOfOne(lambda: bench.device.launch(step_s / accumulation_steps))
    settings = TrainSettings(micro_batch_size=2, accumulation_steps=accumulation_steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bench.meter._step = TrainStep(workload, model, optimizer, settings, torch.device("cpu"))
    bench.guard = bench.meter._guard = Guard(model)
    sizes = lengths or itertools.repeat(2)
    bench.meter._windows = ([torch.ones(next(sizes), 1) for _ in range(accumulation_steps)] for _ in itertools.count())
    return model


@pytest.mark.parametrize("accumulation_steps", [1, 3])
def test_each_step_of_real_training_says_that_the_trial_goes_on(
    monkeypatch: pytest.MonkeyPatch, accumulation_steps: int
) -> None:
    bench = Bench(monkeypatch)
    real_training(bench, accumulation_steps)
    bench.meter.use_up()
    before = bench.events.beats
    bench.meter.use_up()
    assert bench.events.beats - before == accumulation_steps


@pytest.mark.parametrize(
    ("step_s", "at_once", "lead_in"), [(0.5, 1, 0), (STEP_S, 4, 0), (FAST_S, 16, 0), (1 / 256, 64, 5)]
)
def test_plain_steps_are_run_a_few_at_a_time_and_each_is_timed_and_counted(
    monkeypatch: pytest.MonkeyPatch, step_s: float, at_once: int, lead_in: int
) -> None:
    bench = Bench(monkeypatch)
    real_training(bench, 1, itertools.cycle([2, 2, 3]), step_s)
    bench.meter.warm_up()
    beats = bench.events.beats
    bench.meter.block()
    [event] = bench.done
    assert event.block.elapsed_s == PLAN.block_s
    assert event.step_times_s == (step_s,) * event.block.steps
    assert event.block.steps == PLAN.block_s / step_s
    before = bench.warmup.steps + lead_in
    assert event.block.samples == sum((2, 2, 3)[n % 3] for n in range(before, before + event.block.steps))
    assert event.block.new_shapes == 0
    assert bench.events.beats - beats == math.ceil(event.block.steps / at_once) + (lead_in > 0)


def test_short_steps_start_before_their_block(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda _run: FAST_S / 2)
    real_read = bench.cpu.read
    reads = 0

    def slow_to_come_back() -> Any:
        nonlocal reads
        reads += 1
        bench.step.extra_s = 1.0
        return real_read()

    monkeypatch.setattr(bench.cpu, "read", slow_to_come_back)
    bench.meter.warm_up()
    bench.meter.run_plan()
    assert reads == len(bench.blocks)
    for event in bench.done:
        assert event.step_times_s == (FAST_S / 2,) * 64
        assert event.block.elapsed_s == 0.5


def test_a_loss_that_is_not_finite_within_plain_steps_is_met_at_the_end_of_the_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, plan=MeasurePlan(max_warmup_s=0))
    model = real_training(bench, 1)
    bench.meter.warm_up()
    bench.meter._steps_per_block, bench.meter._steps_at_once, bench.meter._lead_in_steps = 7, 5, 2
    with torch.no_grad():
        model.weight.fill_(float("inf"))
    with pytest.raises(NonFinite, match=f"at optimizer step {bench.warmup.steps + 2 + 7}"):
        bench.meter.block()


def test_new_shapes_of_plain_steps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, plan=MeasurePlan(max_warmup_s=0))
    real_training(bench, 1, itertools.count(1))
    bench.meter.warm_up()
    bench.meter._steps_per_block, bench.meter._steps_at_once = 7, 5
    bench.meter.block()
    assert bench.blocks[0].new_shapes == 7


def test_skipped_steps_are_no_optimizer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.step.skipped = lambda run: run % 5 == 0
    bench.meter.warm_up()
    bench.meter.block()
    assert [run for run in range(6, 14) if run % 5 == 0] == [10]
    assert bench.blocks[0].steps == 7
    assert bench.blocks[0].samples == 64
    assert bench.guard.record().skipped_steps == sum(run % 5 == 0 for run in range(bench.step.runs))


@pytest.mark.parametrize("bad_run", [0, 3, 9])
def test_a_loss_that_is_not_finite_ends_the_trial(monkeypatch: pytest.MonkeyPatch, bad_run: int) -> None:
    bench = Bench(monkeypatch, lambda _run: 0.5)
    bench.step.loss = lambda run: float("nan") if run >= bad_run else 1.0

    def measure() -> None:
        bench.meter.warm_up()
        bench.meter.run_plan()

    with pytest.raises(NonFinite, match=f"nan at optimizer step {bad_run + 1}"):
        measure()


def test_only_the_first_steps_are_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.meter.warm_up()
    bench.meter.run_plan()
    assert bench.step.observed == 3
    assert bench.guard.record().losses == pytest.approx((1.0, 1 / 2, 1 / 3))


def test_reports_cost_no_timed_second(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.report_s = 5.0
    bench.meter.warm_up()
    bench.meter.run_plan()
    assert bench.reports == bench.warmup.steps + len(bench.blocks)
    assert {block.elapsed_s for block in bench.blocks} == {0.5}


def test_the_breakdown_names_each_phase_and_sums_to_its_total(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.step.phases_s = {"data_wait": 0.03, "copy": 0.01, "forward": 0.1, "backward": 0.2, "optimizer": 0.05}
    bench.step.rest_s = 0.02
    found = bench.meter.breakdown()
    assert found is not None
    assert (found.data_wait_s, found.copy_s) == pytest.approx((0.03, 0.01))
    assert (found.forward_s, found.backward_s, found.optimizer_s) == pytest.approx((0.1, 0.2, 0.05))
    assert found.other_s == pytest.approx(0.02)
    assert found.communication_s is None
    assert found.total_s == pytest.approx(0.41)
    assert bench.step.runs == PLAN.breakdown_steps
    assert bench.blocks == []


def test_phases_of_several_micro_batches_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)

    def run(window: Iterator[Any], mark: Callable[[str], None] | None = None, observe: bool = False) -> Any:
        for _ in range(4):
            bench.step.phases_s = {"forward": 0.1, "backward": 0.2}
            result = ScriptedStep.run(bench.step, window, mark, observe)
        return result

    monkeypatch.setattr(bench.step, "run", run)
    found = bench.meter.breakdown()
    assert found is not None
    assert (found.forward_s, found.backward_s, found.total_s) == pytest.approx((0.4, 0.8, 1.2))


def test_no_breakdown_where_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, plan=MeasurePlan(breakdown_steps=0))
    assert bench.meter.breakdown() is None
    assert bench.step.runs == 0


def test_a_wall_clock_that_jumps_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = itertools.cycle((0.0, 3600.0, -3600.0))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    bench = Bench(monkeypatch)
    monkeypatch.setattr(meter_module, "time", time)

    def step_of_real_time(_run: int) -> float:
        time.sleep(0.002)
        return 0.0

    plan = MeasurePlan(blocks=3, block_s=0.02)
    step = ScriptedStep(bench.clock, bench.device, step_of_real_time)
    windows = Loader(bench.clock).windows()
    meter = Meter(step, windows, CpuDevice(), plan, bench.events, bench.guard, 0, lambda: None, bench.cpu)
    meter.warm_up()
    meter.run_plan()
    assert 0.012 <= bench.warmup.elapsed_s < 60
    assert len(bench.done) == 3
    for event in bench.done:
        assert 0.002 * event.block.steps <= event.block.elapsed_s < 60
        assert all(0.002 <= seconds < 60 for seconds in event.step_times_s)
        assert sum(event.step_times_s) <= event.block.elapsed_s


@given(st.lists(st.floats(1e-6, 1e3), max_size=12))
def test_settled_means_the_last_two_threes_agree(times: list[float]) -> None:
    if has_settled(times):
        last, before = sorted(times[-3:])[1], sorted(times[-6:-3])[1]
        assert abs(last - before) <= 0.1 * before
    if len(times) < 6:
        assert not has_settled(times)


@given(st.floats(1e-6, 1e3), st.lists(st.floats(1e-6, 1e3), max_size=4))
def test_equal_steps_have_settled_whatever_came_before(step_s: float, before: list[float]) -> None:
    assert has_settled([*before, *[step_s] * 6])


@pytest.mark.parametrize(("others", "blocks"), [((), 8), ((0.5, 0.0, 0.5), 10), ((0.04,) * 8, 8), ((0.5,) * 99, 16)])
def test_disturbed_blocks_are_made_up_for(
    monkeypatch: pytest.MonkeyPatch, others: Sequence[float], blocks: int
) -> None:
    bench = Bench(monkeypatch)
    bench.meter.warm_up()
    bench.meter._watch = BlockWatch(ScriptedCpu(others))
    bench.meter.run_plan()
    assert len(bench.blocks) == blocks
    assert [block.others_cpu_fraction for block in bench.blocks[:3]] == pytest.approx(list((*others, 0, 0, 0)[:3]))
    assert sum(block.is_disturbed for block in bench.blocks) == sum(share > 0.05 for share in others[:blocks])


def test_shapes_that_are_new_in_a_block_are_counted_and_those_of_the_warm_up_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, plan=MeasurePlan(blocks=3))
    lengths = itertools.chain([2, 3], itertools.repeat(4, 12), [5, 6], itertools.repeat(4))
    bench.meter._windows = (iter([torch.empty(next(lengths))]) for _ in itertools.count())

    def run(window: Iterator[Any], mark: Callable[[str], None] | None = None, observe: bool = False) -> Any:
        return ScriptedStep.run(bench.step, iter([1 for _ in window]), mark, observe)

    monkeypatch.setattr(bench.step, "run", run)
    bench.meter.warm_up()
    bench.meter.run_plan()
    assert [block.new_shapes for block in bench.blocks] == [0, 2, 0]


def test_the_load_before_the_first_block_is_told_where_the_trial_was_watched_from_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch)
    bench.meter.warm_up()
    assert bench.warmup.others_cpu_fraction is None
    bench = Bench(monkeypatch)
    bench.meter._watch = BlockWatch(ScriptedCpu([0.75]))
    bench.meter._watch.begin()
    bench.meter.warm_up()
    assert bench.warmup.others_cpu_fraction == 0.75
    assert bench.warmup.idle_cpu_fraction == 0
