"""Records for tests: one identity, trials of it, and a program that writes them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from gputune_tui.domain.environment import Environment
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import StudyIdentity, WorkloadRef
from gputune_tui.domain.trial import Block, Failure, FailureReason, Launch, MemoryPeaks, Trial, TrialState
from gputune_tui.store.reading import StudyContents
from gputune_tui.store.records import GenerationOpened, TrialBegan, TrialEnded, WriterStarted, this_process

ENVIRONMENT = Environment(
    host="node1",
    device="cpu",
    device_name="A CPU",
    device_uuid=None,
    driver=None,
    cuda=None,
    torch="2.14.1",
    python="3.12.1",
    effective_cpus=2.0,
    host_memory_bytes=8 << 30,
    shm_bytes=64 << 20,
)
IDENTITY = StudyIdentity(WorkloadRef("lm", {"size": "tiny"}), "abc", 16, ENVIRONMENT)
GIB = 1 << 30


def other_identity(content_hash: str = "def") -> StudyIdentity:
    return dataclasses.replace(IDENTITY, content_hash=content_hash)


def settings(micro_batch_size: int = 4) -> TrainSettings:
    return TrainSettings(micro_batch_size=micro_batch_size)


def complete(trial_id: int, micro_batch_size: int = 4, elapsed_s: float = 0.5) -> Trial:
    launch = Launch((Block(16, 1, elapsed_s), Block(16, 1, elapsed_s)), (elapsed_s,), 3, MemoryPeaks(host_peak_bytes=7))
    return Trial(
        id=trial_id,
        settings=settings(micro_batch_size),
        state=TrialState.COMPLETE,
        launches=(launch,),
        budget_bytes=4 * GIB,
        started_at=float(trial_id),
    )


def failed(trial_id: int, reason: FailureReason, budget_bytes: int | None = 4 * GIB) -> Trial:
    failure = Failure(reason, "it failed")
    return Trial(trial_id, settings(), TrialState.FAIL, failure, budget_bytes=budget_bytes, started_at=float(trial_id))


def began(trial_id: int, micro_batch_size: int = 4) -> TrialBegan:
    return TrialBegan(1, trial_id, settings(micro_batch_size), 4 * GIB, float(trial_id))


def ended(trial_id: int, micro_batch_size: int = 4) -> TrialEnded:
    return TrialEnded(1, complete(trial_id, micro_batch_size))


def opened(identity: StudyIdentity = IDENTITY, number: int = 1, at: float = 1.0) -> GenerationOpened:
    return GenerationOpened(number, identity, at)


def live_writer(time_s: float = 1.0) -> WriterStarted:
    """A writer that is this process."""
    host, pid, started = this_process()
    return WriterStarted(host, pid, started, "1", time_s)


def dead_writer(time_s: float = 1.0, pid: int = 999_999_999) -> WriterStarted:
    """A writer of this host that is gone."""
    host, _, started = this_process()
    return WriterStarted(host, pid, started, "1", time_s)


def trial_ids(contents: StudyContents) -> list[int]:
    return [] if contents.current is None else [trial.id for trial in contents.current.trials]


def run_program(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start Python code in a process of its own, with these helpers at hand."""
    prelude = (
        "import os, resource, signal, sys, time\nfrom pathlib import Path\nfrom tests.store.samples import *\n"
        "from gputune_tui.errors import StoreWriteError\nfrom gputune_tui.store.reading import read_study\n"
        "from gputune_tui.store.writing import StudyWriter\n"
    )
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", prelude + textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"},
    )


def wait_until(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
