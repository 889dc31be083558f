"""Run small workload files as real, short trials; as a program (`command_for`) it does so in other surroundings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputune_tui.domain.job import Job, MeasurePlan
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import FailureReason, TrialState
from gputune_tui.trial.launcher import Launcher
from gputune_tui.trial.observations import Observations
from gputune_tui.trial.supervisor import Limits, TrialRun, become_subreaper
from gputune_tui.trial.warm_launcher import WarmLauncher

ROOT = Path(__file__).parents[2]
PLAN = MeasurePlan(blocks=2, min_blocks=2, block_s=0.05, max_warmup_steps=6, extra_blocks=0)
BUDGET_BYTES = 2 << 30
STALL_S = 120.0
IS_FRESH = os.environ.get("GPUTUNE_TEST_LAUNCHER") == "fresh"
SHORT_STALL_S = 15.0 if IS_FRESH else 4.0
"""Longer than a trial needs to start: a fresh process imports torch first."""
HEAD = """
import os, signal, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.full((4,), i / 64)

class Base:
    global_batch_size = 8
    def build_model(self): return nn.Linear(4, 1)
    def build_dataset(self): return Numbers()
    def loss(self, model, batch): return model(batch).pow(2).mean()
"""
"""What the workloads of these cases begin with."""


@dataclass(frozen=True)
class Result:
    """How one trial ended."""

    state: TrialState
    reason: FailureReason | None
    message: str
    in_workload: bool
    seen: Observations
    log: Path

    @property
    def is_complete(self) -> bool:
        """True where it measured all that was asked."""
        return self.state is TrialState.COMPLETE and len(self.seen.blocks) == PLAN.blocks


def run_workload(
    launcher: Launcher,
    place: Path,
    source: str,
    budget_bytes: int | None = BUDGET_BYTES,
    limits: Limits | None = None,
    file: str = "wl.py",
    stop_when: Callable[[], bool] = lambda: False,
    **knobs: Any,
) -> Result:
    """Run one trial of the source after HEAD, and stop it when that is asked for; nothing may be left running."""
    folder = place / "workload"
    folder.mkdir(exist_ok=True)
    path = folder / file
    path.write_text(HEAD + textwrap.dedent(source), encoding="utf-8")
    knobs.setdefault("micro_batch_size", 8)
    job = Job(
        kind="trial",
        workload=WorkloadRef(f"{path}:Workload"),
        settings=TrainSettings(**knobs),
        global_batch_size=knobs["micro_batch_size"] * knobs.get("accumulation_steps", 1),
        budget_bytes=budget_bytes,
        plan=PLAN,
        threads=1,
    )
    directory = place / f"trial{len(list(place.iterdir()))}"
    trial = TrialRun(launcher.launch(job, directory), limits or Limits(stall_s=STALL_S))
    try:
        while not trial.finished:
            trial.poll()
            if stop_when():
                trial.stop()
    finally:
        trial.close()
    assert trial.left_running == ()
    assert processes_with_job_in(place) == []
    failure = trial.failure
    return Result(
        trial.state,
        failure.reason if failure else None,
        failure.message if failure else "",
        failure.in_workload if failure else False,
        trial.seen,
        directory / "log.txt",
    )


def processes_with_job_in(folder: Path) -> list[int]:
    """Living processes that carry a trial's job under `folder` in their environment, whatever their session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"GPUTUNE_JOB=" + os.fsencode(folder) in environment:
                found.append(int(entry.name))
    return found


@dataclass(frozen=True)
class Told:
    """How a trial in other surroundings ended."""

    state: str
    reason: str | None
    message: str
    notes: tuple[str, ...]


def command_for(place: Path, trials: Sequence[dict[str, Any]]) -> list[str]:
    """The command that runs trials one after the other, by the arguments of `run_workload` and `stall_s`."""
    place.mkdir(exist_ok=True)
    (place / "trials.json").write_text(json.dumps(trials))
    return [sys.executable, "-m", "tests.cases.running", str(place)]


def told_by(command: Sequence[str]) -> list[Told]:
    """Run that command, wherever it is wrapped in, and read what it tells."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return [Told(**one | {"notes": tuple(one["notes"])}) for one in json.loads(done.stdout)]


def main(place: Path) -> None:
    """Run what trials.json says and tell how it ended as JSON."""
    become_subreaper()
    launcher = WarmLauncher()
    told = []
    for arguments in json.loads((place / "trials.json").read_text()):
        limits = Limits(stall_s=arguments.pop("stall_s", STALL_S))
        result = run_workload(launcher, place, limits=limits, **arguments)
        told.append([result.state.value, result.reason and result.reason.value, result.message, result.seen.notes])
    launcher.close()
    print(json.dumps([dict(zip(("state", "reason", "message", "notes"), one, strict=True)) for one in told]))  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
