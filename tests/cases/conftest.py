"""Run a small workload file as one real, short trial, and check afterwards that nothing of it is left running.

Trials are forked from one warm host; with GPUTUNE_TEST_LAUNCHER=fresh each is a fresh process.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gputune_tui.domain.job import Job, MeasurePlan
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import FailureReason, TrialState
from gputune_tui.trial.launcher import Launcher, LocalLauncher
from gputune_tui.trial.supervisor import Limits, Observations, TrialRun, become_subreaper
from gputune_tui.trial.warm_launcher import WarmLauncher

PLAN = MeasurePlan(blocks=2, min_blocks=2, block_s=0.05, max_warmup_steps=6, extra_blocks=0)

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


RunCase = Callable[..., Result]


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


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """What starts the trials of all cases."""
    # pytest changes its environment with every test, for which the host would be replaced.
    environment = dict(os.environ)
    is_fresh = environment.get("GPUTUNE_TEST_LAUNCHER") == "fresh"
    launcher = LocalLauncher(environment) if is_fresh else WarmLauncher(environment)
    yield launcher
    launcher.close()


@pytest.fixture
def run_case(tmp_path: Path, launcher: Launcher) -> RunCase:
    """Run one trial: run_case(source, budget_bytes=..., limits=..., file=..., **knobs)."""
    become_subreaper()

    def run(
        source: str,
        budget_bytes: int | None = 2 << 30,
        limits: Limits | None = None,
        file: str = "wl.py",
        **knobs: Any,
    ) -> Result:
        folder = tmp_path / "workload"
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
        directory = tmp_path / f"trial{len(list(tmp_path.iterdir()))}"
        trial = TrialRun(launcher.launch(job, directory), limits or Limits(stall_s=120))
        try:
            while not trial.finished:
                trial.poll()
        finally:
            trial.close()
        assert trial.left_running == ()
        assert processes_with_job_in(tmp_path) == []
        failure = trial.failure
        return Result(
            trial.state,
            failure.reason if failure else None,
            failure.message if failure else "",
            failure.in_workload if failure else False,
            trial.seen,
            directory / "log.txt",
        )

    return run
