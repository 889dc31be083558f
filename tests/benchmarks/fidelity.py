"""What a trial measures against the same training loop written by hand in plain torch (`by_hand.py`).

Run: python -m tests.benchmarks.fidelity [--cycles MOST] [lm|vision|1ms ...]    blocks in turn, in one process
     python -m tests.benchmarks.fidelity --pairs N [lm|vision|1ms ...]          N launches of each, in processes

In one process both train the same model with the same optimizer and loader, in blocks trial, hand, hand, trial of
as many steps each, so that nothing but the trial's own code differs. The figures are those that each of them tells.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gputune_tui.domain.environment import intra_op_threads
from gputune_tui.domain.job import Job, MeasurePlan
from gputune_tui.domain.protocol import BlockDone, Event
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import Block, TrialState
from gputune_tui.telemetry.host import host_limits
from gputune_tui.trial.launcher import process_environment
from gputune_tui.trial.supervisor import Limits, TrialRun, become_subreaper
from gputune_tui.trial.warm_launcher import WarmLauncher
from tests.benchmarks.by_hand import CASES, Case, Training
from tests.benchmarks.ratios import LEAST_CYCLES, RatioInterval, ratio_interval

ORDER = (True, False, False, True)
"""Whether a block is the trial's."""
HALF_WIDTH = 0.01
WANTED_HALF_WIDTH = 0.008
"""Cycles go on until the interval is this narrow, which says nothing of where it lies."""
MOST_CYCLES = 800
PAIRS_WITHIN = 0.03


def job_of(case: Case, plan: MeasurePlan) -> Job:
    """The trial that is launched, and whose parts are run here."""
    return Job(
        kind="trial",
        workload=WorkloadRef(case.file, case.options),
        settings=TrainSettings(micro_batch_size=case.batch_size),
        global_batch_size=case.batch_size,
        threads=intra_op_threads(host_limits().effective_cpus),
        plan=plan,
    )


class InOneProcess:
    """A trial's meter and a loop by hand over the same model, optimizer and loader."""

    def __init__(self, case: Case) -> None:
        from gputune_tui.trainer import session
        from gputune_tui.trainer.device import open_device
        from gputune_tui.trainer.events import EventSink
        from gputune_tui.trainer.guard import Guard
        from gputune_tui.trainer.loader import build_batches
        from gputune_tui.trainer.meter import Meter
        from gputune_tui.trainer.precision import prepare_precision
        from gputune_tui.trainer.seeding import seed_everything
        from gputune_tui.trainer.train_step import TrainStep
        from gputune_tui.trainer.workload import load_workload

        class Listening(EventSink):
            """Keeps the last block, and writes as a trial does."""

            last: Block | None = None

            def send(self, event: Event) -> None:
                super().send(event)
                if isinstance(event, BlockDone):
                    self.last = event.block

        job = job_of(case, MeasurePlan())
        settings = job.settings
        assert settings is not None
        device = open_device(job.device, job.threads)
        prepare_precision(settings.precision, device.kind)
        seed_everything(job.seed)
        workload = load_workload(job.workload)
        self._events = Listening(os.open(os.devnull, os.O_WRONLY))
        model, optimizer = session._build(workload, settings, device, self._events)
        batches = build_batches(workload, settings, device.kind, job.seed)
        step = TrainStep(workload, model, optimizer, settings, device.torch_device)
        windows = batches.windows(settings.accumulation_steps)
        self._meter = Meter(step, windows, device, job.plan, self._events, Guard(model), 0, lambda: None)
        self._hooks = optimizer._optimizer_step_post_hooks
        self._trials_hooks = dict(self._hooks)
        self._by_hand = Training(workload.user, model, optimizer, batches.loader)
        self._meter.warm_up()
        self._lead_in_steps = self._meter._lead_in_steps

    def block_of_trial(self) -> Block:
        """One block as a trial times and tells it."""
        self._hooks.update(self._trials_hooks)
        self._meter.block()
        self._hooks.clear()  # the loop by hand has none
        assert self._events.last is not None
        return self._events.last

    def log_ratios(self) -> Iterator[float]:
        """Of each cycle: log throughput of the trial, less that by hand."""
        while True:
            rates: dict[bool, list[float]] = {True: [], False: []}
            for is_trial in ORDER:
                if is_trial:
                    rate = self.block_of_trial().samples_per_s
                    steps = self._events.last.steps if self._events.last else 0
                else:
                    # A trial has such steps, too, where its own are short: what ran before is in no cache then.
                    self._by_hand.steps(self._lead_in_steps)
                    samples, elapsed_s = self._by_hand.steps(steps)
                    rate = samples / elapsed_s
                rates[is_trial].append(math.log(rate))
            yield (sum(rates[True]) - sum(rates[False])) / 2


def in_one_process(name: str, most_cycles: int) -> bool:
    """Print the ratio in one process; True where it passes."""
    return is_one(f"{name}: trial over by hand, one process", InOneProcess(CASES[name]).log_ratios(), most_cycles)


def is_one(what: str, log_ratios: Iterator[float], most_cycles: int) -> bool:
    """Take cycles until their interval is narrow and print it; True where it holds 1."""
    ratios: list[float] = []
    for ratio in log_ratios:
        ratios.append(ratio)
        enough = len(ratios) >= LEAST_CYCLES and ratio_interval(ratios).half_width_fraction < WANTED_HALF_WIDTH
        if enough or len(ratios) >= most_cycles:
            break
        if len(ratios) % LEAST_CYCLES == 0:
            print(f"{what}: {ratio_interval(ratios)} after {len(ratios)} cycles", file=sys.stderr, flush=True)
    found = ratio_interval(ratios)
    passed = found.holds_one and found.half_width_fraction < HALF_WIDTH and found.count >= LEAST_CYCLES
    return told(what, found, f"cycles of {len(ORDER)} blocks", passed)


def in_pairs(name: str, pairs: int) -> bool:
    """Print the ratio of whole launches; True where it is within 3 %."""
    case = CASES[name]
    job = job_of(case, MeasurePlan())
    launcher = WarmLauncher()
    environment = process_environment(job) | {"PYTHONPATH": os.getcwd()}
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(pairs):
            rates = {}
            for is_trial in (True, False) if number % 2 else (False, True):
                where = Path(folder) / f"{number}"
                rates[is_trial] = launched(launcher, job, where) if is_trial else by_hand(name, environment)
            ratios.append(math.log(rates[True] / rates[False]))
    launcher.close()
    found = ratio_interval(ratios)
    passed = abs(math.log(found.value)) <= PAIRS_WITHIN
    return told(f"{name}: trial over by hand, launches", found, "pairs", passed)


def launched(launcher: WarmLauncher, job: Job, folder: Path) -> float:
    """samples/s of one launched trial."""
    run = TrialRun(launcher.launch(job, folder), Limits())
    while not run.finished:
        run.poll()
    assert run.state is TrialState.COMPLETE, run.failure
    blocks = run.seen.blocks
    return sum(block.samples for block in blocks) / sum(block.elapsed_s for block in blocks)


def by_hand(name: str, environment: dict[str, str]) -> float:
    """samples/s of one process that trains by hand, for about as long as a trial is timed."""
    seconds = str(MeasurePlan().blocks * MeasurePlan().block_s)
    command = [sys.executable, "-m", "tests.benchmarks.by_hand", name, seconds]
    return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def told(what: str, found: RatioInterval, of: str, passed: bool) -> bool:
    """Print one line."""
    print(f"{what}: {found}, {found.count} {of}: {'PASS' if passed else 'FAIL'}", flush=True)
    return passed


def main() -> int:
    """The exit code is the number of misses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycles", type=int, default=MOST_CYCLES)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    become_subreaper()
    misses = 0
    for name in given.names or list(CASES):
        misses += not (in_pairs(name, given.pairs) if given.pairs else in_one_process(name, given.cycles))
    return misses


if __name__ == "__main__":
    sys.exit(main())
