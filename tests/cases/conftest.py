"""Run a small workload file as one real, short trial, and check afterwards that nothing of it is left running.

Trials are forked from one warm host; with GPUTUNE_TEST_LAUNCHER=fresh each is a fresh process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputune_tui.trial.launcher import Launcher, LocalLauncher
from gputune_tui.trial.supervisor import become_subreaper
from gputune_tui.trial.warm_launcher import WarmLauncher
from tests.cases.running import IS_FRESH, Result, run_workload

__all__ = ["Result", "RunCase"]

RunCase = Callable[..., Result]


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """What starts the trials of all cases."""
    # pytest changes its environment with every test, for which the host would be replaced.
    environment = dict(os.environ)
    launcher = LocalLauncher(environment) if IS_FRESH else WarmLauncher(environment)
    yield launcher
    launcher.close()


@pytest.fixture
def run_case(tmp_path: Path, launcher: Launcher) -> RunCase:
    """Run one trial: run_case(source, budget_bytes=..., limits=..., file=..., **knobs)."""
    become_subreaper()
    return functools.partial(run_workload, launcher, tmp_path)
