"""samples/s of scripts as a trial tells it, against a count by hand in the same processes; each way of starting them.

Run: python -m tests.benchmarks.scripts

The hand's instrument is one of its own (`hand/sitecustomize.py`): the times at which optimizer steps ended. It knows
how many samples a step has, and takes as many of the last steps as the trial has timed.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gputune_tui.domain.job import Job, MeasurePlan, ScriptOrder
from gputune_tui.domain.script_order import script_order
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import TrialState
from gputune_tui.trial.launcher import LocalLauncher
from gputune_tui.trial.supervisor import Limits, TrialRun, become_subreaper

SCRIPTS = Path(__file__).parents[1] / "scripts"
WITHIN = 0.02


@dataclass(frozen=True)
class Case:
    """A command and how many samples one optimizer step of it has over all ranks."""

    name: str
    command: tuple[str, ...]
    samples: int


def cases() -> list[Case]:
    """One script by itself and from a shell, and two ranks by each launcher."""
    python, torchrun = sys.executable, str(Path(sys.executable).with_name("torchrun"))
    mnist, ddp = str(SCRIPTS / "mnist.py"), str(SCRIPTS / "ddp.py")
    return [
        Case("python", (python, mnist), 32),
        Case("python, checkpoint_sequential", (python, str(SCRIPTS / "sequential_checkpoints.py")), 16),
        Case("bash", ("bash", "-c", f"cd /tmp; {python} {mnist} --batch-size 64"), 64),
        Case("torchrun, 2 ranks", (torchrun, "--standalone", "--nproc-per-node=2", ddp), 32),
        Case("mp.spawn, 2 ranks", (python, ddp), 32),
    ]


def run(kind: str, case: Case, folder: Path, order: ScriptOrder) -> TrialRun:
    """One launch to its end."""
    workload = WorkloadRef(case.name, command=case.command)
    job = Job(kind, workload, settings=TrainSettings(), threads=1, plan=MeasurePlan(), script=order)
    environment = dict(os.environ)
    if kind == "trial":
        hand = str(Path(__file__).with_name("hand"))
        environment |= {"PYTHONPATH": hand, "HAND_STEPS": str(folder / "steps")}
    run = TrialRun(LocalLauncher(environment).launch(job, folder), Limits(), is_command=True)
    while not run.finished:
        run.poll()
    return run


def main() -> int:
    """The exit code is the number of misses."""
    become_subreaper()
    misses = 0
    for case in cases():
        with tempfile.TemporaryDirectory() as folder:
            looked = run("detect", case, Path(folder) / "look", ScriptOrder())
            assert looked.seen.detected is not None, looked.failure
            facts = looked.seen.detected.facts
            own = TrainSettings(**facts.knobs())  # type: ignore[arg-type]
            order = script_order(WorkloadRef("", command=case.command), facts, own.canonical("cpu"), "cpu")
            timed = run("trial", case, Path(folder), order)
            assert timed.state is TrialState.COMPLETE, timed.failure
            blocks = timed.seen.blocks
            told = sum(block.samples for block in blocks) / sum(block.elapsed_s for block in blocks)
            count = sum(block.steps for block in blocks)
            first = sorted(Path(folder).glob("steps.*"))[0]
            times = [float(line) for line in first.read_text().split()]
            # With several ranks one step follows the last block.
            times = times[: len(times) - (facts.world_size > 1)]
            by_hand = count * case.samples / (times[-1] - times[-1 - count])
        ratio = told / by_hand
        passed = abs(ratio - 1) <= WITHIN
        misses += not passed
        print(f"{case.name}: {told:.1f} samples/s, by hand {by_hand:.1f}: {ratio:.4f}: {'PASS' if passed else 'FAIL'}")
    return misses


if __name__ == "__main__":
    sys.exit(main())
