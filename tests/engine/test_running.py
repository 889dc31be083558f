"""A launch that has to wait for its launcher: the engine goes on ticking, and may be told to stop."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from gputune_tui.domain.job import Job
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import TrialState
from gputune_tui.engine.events import EngineEvent
from gputune_tui.engine.running import run_to_end
from gputune_tui.trial.launcher import LocalLauncher, TrialProcess
from gputune_tui.trial.supervisor import Limits, TrialRun

JOB = Job("trial", WorkloadRef("true", command=("true",)), settings=TrainSettings())


class SlowLauncher(LocalLauncher):
    """Not ready when it is asked the first times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.left = times
        self.launched = False

    def is_ready(self, job: Job, timeout_s: float) -> bool:
        """True at last."""
        self.left -= 1
        return self.left < 0

    def launch(self, job: Job, directory: Path) -> TrialProcess:
        """As a local one."""
        self.launched = True
        return super().launch(job, directory)


def result_of(task: Generator[EngineEvent | None, None, TrialRun]) -> TrialRun:
    """Run a task to its end."""
    while True:
        try:
            next(task)
        except StopIteration as end:
            run: TrialRun = end.value
            return run


def test_ticks_come_until_the_launcher_is_ready(tmp_path: Path) -> None:
    launcher = SlowLauncher(3)
    task = run_to_end(launcher, JOB, tmp_path, Limits(), 1)
    assert [next(task) for _ in range(3)] == [None] * 3
    run = result_of(task)
    assert launcher.launched
    assert run.state is TrialState.FAIL  # `true` measures nothing


def test_closing_it_while_it_waits_launches_nothing(tmp_path: Path) -> None:
    launcher = SlowLauncher(10)
    task = run_to_end(launcher, JOB, tmp_path, Limits(), 1)
    next(task)
    task.close()
    assert not launcher.launched
