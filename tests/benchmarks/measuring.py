"""Pairs of real resident launches of `lm` tiny, measured while the machine is quiet: what the noise is fitted to."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gputune_tui.domain.job import Job
from gputune_tui.domain.protocol import BlockDone, Finish, RunBlock
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.engine.comparing import BLOCK_S, CYCLE
from gputune_tui.engine.device_lock import DeviceLock
from gputune_tui.trial.launcher import Launcher
from gputune_tui.trial.supervisor import Limits, TrialRun, become_subreaper
from gputune_tui.trial.warm_launcher import WarmLauncher
from tests.benchmarks.start import lm_tiny

BATCH = 36
"""Samples per step: about 50 ms on two CPU cores."""
CYCLES = 10
QUIET_FRACTION = 0.85
"""A pair is begun when the CPUs were idle for this share of a second."""
DISTURBED_FRACTION = 0.4
"""A pair of which more blocks were disturbed by other processes is measured again."""


@dataclass(frozen=True)
class TimedBlock:
    """One block and when it ended, in seconds since the first pair."""

    arm: int
    end_s: float
    elapsed_s: float
    step_times_s: tuple[float, ...]
    is_disturbed: bool


@dataclass(frozen=True)
class MeasuredPair:
    """Two launches of one setting side by side, and what they cost."""

    ready_s: tuple[float, ...]
    end_s: float
    order_s: float
    """Mean time of a block beside its steps and the one before them."""
    blocks: tuple[TimedBlock, ...]


def measure(pairs: int, patience_s: float) -> Iterator[MeasuredPair]:
    """Pairs as they come; fewer where the machine was not quiet for long enough."""
    become_subreaper()
    settings = TrainSettings(micro_batch_size=BATCH)
    job = replace(lm_tiny(), settings=settings, global_batch_size=BATCH, paced=True)
    job = replace(job, plan=replace(job.plan, block_s=BLOCK_S, breakdown_steps=0))
    launcher, lock = WarmLauncher(), DeviceLock("cpu")
    began = time.perf_counter()
    found = tried = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            while found < pairs and _wait_for_quiet(lock, began + patience_s):
                tried += 1
                pair = _pair(launcher, job, Path(folder) / str(tried), began, first=tried % 2)
                lock.release()
                disturbed = sum(block.is_disturbed for block in pair.blocks) / len(pair.blocks)
                kept = disturbed <= DISTURBED_FRACTION
                found += kept
                words = "" if kept else ": left out"
                print(f"  pair {tried}: {disturbed:.0%} of its blocks disturbed{words}", file=sys.stderr)
                if kept:
                    yield pair
        finally:
            lock.release()
            launcher.close()


def _wait_for_quiet(lock: DeviceLock, deadline: float) -> bool:
    """Until no other instance measures and nothing else runs; the device is then this process's."""
    while time.perf_counter() < deadline:
        idle, total = _cpu_ticks()
        time.sleep(1)
        idle_after, total_after = _cpu_ticks()
        if idle_after - idle > QUIET_FRACTION * (total_after - total) and lock.acquire():
            return True
    return False


def _cpu_ticks() -> tuple[int, int]:
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)


def _pair(launcher: Launcher, job: Job, folder: Path, began: float, first: int) -> MeasuredPair:
    runs: dict[int, TrialRun] = {}
    try:
        ready_s = []
        for arm in (first, 1 - first):
            requested = time.perf_counter()
            while not launcher.is_ready(job, 0.1):
                requested = time.perf_counter()
            runs[arm] = TrialRun(launcher.launch(job, folder / str(arm)), Limits())
            _follow(runs[arm], 0)
            ready_s.append(time.perf_counter() - requested)
        order, blocks, beside_s = list(runs), list[TimedBlock](), 0.0
        for turn in CYCLE * CYCLES:
            run, ordered = runs[order[turn]], time.perf_counter()
            run.order(RunBlock())
            done = _follow(run, len(run.seen.blocks) + 1)
            now, block, steps = time.perf_counter(), done.block, done.step_times_s
            blocks.append(TimedBlock(order[turn], now - began, block.elapsed_s, steps, block.is_disturbed))
            beside_s += now - ordered - block.elapsed_s * (1 + 1 / len(steps))
        over = time.perf_counter()
        for run in runs.values():
            run.order(Finish())
        for run in runs.values():
            while not run.finished:
                run.poll()
        return MeasuredPair(tuple(ready_s), time.perf_counter() - over, max(0.0, beside_s / len(blocks)), tuple(blocks))
    finally:
        for run in runs.values():
            run.close()


def _follow(run: TrialRun, blocks: int) -> BlockDone:
    """Wait until the run has that many blocks and waits for orders; returns the last block."""
    last = BlockDone(block=None, step_times_s=(), planned=0)  # type: ignore[arg-type]  # of a run without blocks
    while not (run.seen.phase == "ready" and len(run.seen.blocks) >= blocks):
        for event in run.poll():
            if isinstance(event, BlockDone):
                last = event
        if run.finished:
            raise SystemExit(f"a launch ended: {run.failure}")
    return last


def cpus() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0))
