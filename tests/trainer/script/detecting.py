"""Look at a script as the engine does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gputune_tui.domain.job import Job
from gputune_tui.domain.protocol import Detected
from gputune_tui.domain.script import ScriptFacts
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import Failure
from gputune_tui.trial.launcher import LocalLauncher
from gputune_tui.trial.supervisor import Limits, TrialRun
from tests.trainer.script.running import SCRIPTS


def launched(job: Job, folder: Path) -> TrialRun:
    """The trial of a command, followed to its end."""
    run = TrialRun(LocalLauncher().launch(job, folder), Limits(stall_s=120.0), is_command=True)
    while not run.finished:
        run.poll()
    return run


def look(
    folder: Path, arguments: Sequence[str], command: Sequence[str] = (), samples_per_step: int | None = None
) -> tuple[ScriptFacts | None, Failure | None]:
    """What the script does by itself, or how it failed; `command` in place of `python SCRIPT ARGUMENTS`."""
    words = tuple(command) or (sys.executable, str(SCRIPTS / arguments[0]), *arguments[1:])
    workload = WorkloadRef("s", command=words, samples_per_step=samples_per_step)
    run = launched(Job("detect", workload, settings=TrainSettings(), threads=1), folder)
    detected: Detected | None = run.seen.detected
    return (None if detected is None else detected.facts), run.failure


def facts_of(folder: Path, *arguments: str) -> ScriptFacts:
    """What the script does by itself."""
    facts, failure = look(folder, arguments)
    assert facts is not None, failure
    return facts
