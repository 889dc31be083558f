"""Trials whose body is a small script: real processes, pipes and signals, no torch."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputune_tui.domain.job import Job
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trial.launcher import LocalLauncher
from gputune_tui.trial.supervisor import Limits, TrialRun

PRELUDE = """
import json, os, signal, subprocess, sys, time
def send(event, **fields):
    line = json.dumps({"v": 1, "event": event, **fields}) + "\\n"
    os.write(int(os.environ["GPUTUNE_EVENTS_FD"]), line.encode())
def spawn(code, **options):
    return subprocess.Popen([sys.executable, "-S", "-c", code], **options)
"""

StartTrial = Callable[..., TrialRun]


@pytest.fixture
def start_trial(tmp_path: Path) -> Iterator[StartTrial]:
    """Start a trial whose process runs the given Python code after PRELUDE."""
    runs: list[TrialRun] = []

    def start(code: str, limits: Limits | None = None, paced: bool = False) -> TrialRun:
        script = tmp_path / f"body{len(runs)}.py"
        script.write_text(PRELUDE + textwrap.dedent(code))
        job = Job(
            kind="trial",
            workload=WorkloadRef("body", command=(sys.executable, "-S", str(script))),
            settings=TrainSettings(),
            paced=paced,
        )
        process = LocalLauncher().launch(job, tmp_path / f"trial{len(runs)}")
        run = TrialRun(process, limits or Limits(), is_command=True)
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()
