"""A trial that takes memory past its allocator's cap is ended soon, typed, with what it held."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gputune_tui.domain.conditions import Conditions
from gputune_tui.domain.protocol import Memory
from gputune_tui.domain.trial import FailureReason, MemoryPeaks, TrialState
from gputune_tui.trial.launcher import LocalLauncher
from gputune_tui.trial.memory_mark import (
    CPU_SLACK_BYTES,
    GPU_SLACK_BYTES,
    PERIOD_S,
    MemoryMark,
    OverMark,
    over_on_cpu,
    over_on_gpu,
    resident_bytes,
)
from gputune_tui.trial.observations import Observations
from gputune_tui.trial.supervisor import Limits, TrialRun

from .conftest import StartTrial, body_job
from .test_supervisor import run_out, wait_gone

MIB = 1 << 20
BUDGET = 400 * MIB
TAKE = """
import mmap, resource
# As a trial's own cap does, which memory shared with a C library's other processes passes by.
resource.setrlimit(resource.RLIMIT_DATA, (512 << 20, 512 << 20))
send("hello", pid=os.getpid(), python="3")
resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
send("memory", peaks={{"device_peak_bytes": 300 << 20}}, fixed_overhead_bytes=300 << 20,
     resident_mark_bytes=resident + (100 << 20))
send("phase", name="{phase}")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = mmap.mmap(-1, {megabytes} << 20)
for page in range(0, len(held), 4096):
    held[page] = 1
time.sleep({seconds})
send("done")
"""


class Watched:
    """A driver that tells so much of a trial's processes."""

    def __init__(self, told: int | None) -> None:
        self.told = told
        self.timed: list[bool] = []
        self.asked = 0

    def look(self, is_timed: bool) -> None:
        self.timed.append(is_timed)

    def device_bytes(self, pid: int | None) -> int | None:
        self.asked += 1
        return self.told if pid is not None else None

    def conditions(self, of_trial: Conditions) -> Conditions:
        return replace(of_trial, denormal_fraction=0.5)


def test_shared_memory_outside_the_cap_ends_a_trial_within_about_a_second(start_trial: StartTrial) -> None:
    run = start_trial(TAKE.format(phase="measure", megabytes=300, seconds=600), Limits(budget_bytes=BUDGET))
    while run.seen.phase != "measure":
        run.poll(0.05)
    began = time.monotonic()
    run_out(run)
    took_s = time.monotonic() - began
    assert run.failure is not None
    assert run.failure.reason is FailureReason.OVER_BUDGET
    assert "measuring" in run.failure.message
    assert "of the budget of 400 MiB" in run.failure.message
    assert "--budget" in run.failure.message
    peak = run.seen.memory.device_peak_bytes
    assert peak is not None
    assert BUDGET + CPU_SLACK_BYTES < peak <= 610 * MIB
    assert took_s < 20, "generous, for a busy machine"
    assert run.pid is not None
    wait_gone(run.pid)


@pytest.mark.parametrize("budget", [None, BUDGET])
def test_what_is_within_the_slack_or_has_no_budget_runs_on(start_trial: StartTrial, budget: int | None) -> None:
    megabytes = 120 if budget else 300
    code = TAKE.format(phase="measure", megabytes=megabytes, seconds=4 * PERIOD_S)
    run = run_out(start_trial(code, Limits(budget_bytes=budget)))
    assert run.state is TrialState.COMPLETE


@pytest.mark.parametrize("phase", ["finish", "noise"])
def test_what_a_trial_takes_once_all_is_measured_ends_nothing(start_trial: StartTrial, phase: str) -> None:
    # The host's budget has room for a process with torch, which the warm one is from its start.
    code = TAKE.format(phase=phase, megabytes=1100, seconds=4 * PERIOD_S)
    run = run_out(start_trial(code, Limits(budget_bytes=BUDGET, host_bytes=1000 * MIB)))
    assert run.state is TrialState.COMPLETE, run.failure
    assert run.seen.memory.device_peak_bytes == 300 * MIB, "as the trial told"


@pytest.fixture
def trial_on_gpu(tmp_path: Path) -> Iterator[tuple[TrialRun, Watched]]:
    """A trial whose driver the test speaks for."""
    job = body_job(tmp_path / "body.py", "send('phase', name='measure'); time.sleep(600)", forked=False)
    watched = Watched(BUDGET + GPU_SLACK_BYTES)
    limits = Limits(budget_bytes=BUDGET)
    run = TrialRun(LocalLauncher().launch(job, tmp_path / "trial"), limits, is_command=True, watch=watched)
    yield run, watched
    run.close()


def told_of(device_peak_bytes: int | None) -> Memory:
    return Memory(MemoryPeaks(device_peak_bytes=device_peak_bytes, peak_reserved_bytes=5 * MIB, host_peak_bytes=MIB))


def test_the_drivers_largest_figure_counts_with_and_without_a_budget(tmp_path: Path) -> None:
    job = body_job(tmp_path / "body.py", "send('phase', name='measure'); time.sleep(600)", forked=False)
    watched = Watched(None)
    run = TrialRun(LocalLauncher().launch(job, tmp_path / "trial"), Limits(), is_command=True, watch=watched)
    try:
        while run.seen.phase != "measure":
            run.poll(0.05)
        assert run.seen.memory.device_peak_bytes is None
        for told, peak in ((3 * BUDGET, 3 * BUDGET), (2 * BUDGET, 3 * BUDGET), (None, 3 * BUDGET)):
            watched.told = told
            asked = watched.asked
            while watched.asked == asked:
                run.poll(0.05)
            assert run.seen.memory.device_peak_bytes == peak
        assert not run.finished
    finally:
        run.close()


@pytest.mark.parametrize(("told", "peak"), [(100, 300), (900, 900), (None, 300)])
def test_a_peak_seen_from_outside_stays_when_the_trial_tells_its_own(told: int | None, peak: int) -> None:
    seen = Observations()
    seen.take(told_of(100))
    seen.take_device_peak(300)
    seen.take_device_peak(200)
    seen.take(told_of(told))
    assert seen.memory == MemoryPeaks(
        device_peak_bytes=peak, peak_reserved_bytes=5 * MIB, host_peak_bytes=MIB, alloc_retries=None
    )


def test_what_the_driver_shows_is_held_against_the_budget(trial_on_gpu: tuple[TrialRun, Watched]) -> None:
    run, watched = trial_on_gpu
    while run.seen.phase != "measure":
        run.poll(0.05)
    run.poll(2 * PERIOD_S)
    run.poll(2 * PERIOD_S)
    assert not run.finished
    watched.told = 2 * BUDGET
    run_out(run)
    assert run.failure is not None
    assert run.failure.reason is FailureReason.OVER_BUDGET
    assert "800 MiB of the budget of 400 MiB" in run.failure.message
    assert run.seen.memory.device_peak_bytes == 2 * BUDGET
    assert {False, True} == set(watched.timed)
    conditions = run.launch().conditions
    assert conditions is not None
    assert conditions.denormal_fraction == 0.5


def test_the_figure_is_the_device_figure() -> None:
    assert over_on_cpu(1000 * MIB, 700 * MIB, 500 * MIB) == OverMark(800 * MIB, 500 * MIB)
    assert over_on_cpu(700 * MIB + CPU_SLACK_BYTES, 700 * MIB, 500 * MIB) is None
    assert over_on_cpu(None, 700 * MIB, 500 * MIB) is None
    assert over_on_gpu(None, BUDGET) is None
    assert over_on_gpu(BUDGET + GPU_SLACK_BYTES + 1, BUDGET) == OverMark(BUDGET + GPU_SLACK_BYTES + 1, BUDGET)


def test_it_looks_seldom_and_never_at_what_is_gone() -> None:
    now, watched = [10.0], Watched(2 * BUDGET)
    mark = MemoryMark(BUDGET, watched, lambda: now[0])
    assert mark.look(None, None) is None, "no process yet"
    watched.told = 2 * BUDGET
    assert mark.look(1, None) is None, "too soon"
    now[0] += PERIOD_S
    assert mark.look(1, None) == OverMark(2 * BUDGET, BUDGET)
    assert MemoryMark(None, watched).look(1, 1) is None
    assert resident_bytes((1 << 22) + 1) is None
