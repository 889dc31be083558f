"""Trials whose body is a small script: real processes, pipes and signals; fresh, and forked from a warm host."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputune_tui.domain.job import Job
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trial.launcher import Launcher, LocalLauncher
from gputune_tui.trial.supervisor import Limits, TrialRun
from gputune_tui.trial.warm_launcher import WarmLauncher

PRELUDE = """
import json, os, signal, subprocess, sys, time
def send(event, **fields):
    line = json.dumps({"v": 1, "event": event, **fields}) + "\\n"
    os.write(int(os.environ["GPUTUNE_EVENTS_FD"]), line.encode())
def spawn(code, **options):
    return subprocess.Popen([sys.executable, "-S", "-c", code], **options)
"""
AS_A_PROGRAM = """
signal.signal(signal.SIGTERM, signal.SIG_DFL)
code = 0
try:
    exec(compile({code!r}, "body", "exec"))
except SystemExit as ending:
    code = ending.code
sys.stdout.flush()
os._exit(code)
"""
"""A workload file whose import is the body, run and ended as if it were a program of its own."""

StartTrial = Callable[..., TrialRun]


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmLauncher]:
    """A launcher with a warm host, for all tests."""
    # pytest changes its environment with every test, for which the host would be replaced.
    launcher = WarmLauncher(dict(os.environ))
    yield launcher
    launcher.close()


def body_job(file: Path, code: str, forked: bool, paced: bool = False) -> Job:
    """A trial that runs the code after PRELUDE: a command of its own, or a workload that can be forked."""
    code = textwrap.dedent(code)
    file.write_text(PRELUDE + (AS_A_PROGRAM.format(code=code) if forked else code))
    workload = WorkloadRef(str(file)) if forked else WorkloadRef("body", command=(sys.executable, "-S", str(file)))
    return Job("trial", workload, settings=TrainSettings(), paced=paced, threads=1)


@pytest.fixture(params=["fresh", pytest.param("warm", marks=pytest.mark.slow)])
def start_trial(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartTrial]:
    """Start a trial whose process runs the given Python code after PRELUDE; each test runs against both launchers."""
    runs: list[TrialRun] = []
    forked = request.param == "warm"
    launcher: Launcher = request.getfixturevalue("warm") if forked else LocalLauncher()

    def start(code: str, limits: Limits | None = None, paced: bool = False) -> TrialRun:
        job = body_job(tmp_path / f"body{len(runs)}.py", code, forked, paced)
        process = launcher.launch(job, tmp_path / f"trial{len(runs)}")
        run = TrialRun(process, limits or Limits(), is_command=not forked)
        assert run.seen.notes == []
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()
