"""Entry point of a trial process: read the job, run it, report every way it can end as one event."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from gputune_tui.domain.job import JOB_VARIABLE, Job
from gputune_tui.domain.plain import from_plain
from gputune_tui.domain.protocol import Done, Error, Hello, Memory
from gputune_tui.domain.trial import FailureReason, MemoryPeaks
from gputune_tui.trainer.events import EventSink


def main() -> NoReturn:
    """Run the job named in the environment and end the process without interpreter teardown.

    Teardown takes 0.4 to 0.7 s with torch loaded (trial_engine.md section 1), and by then everything is reported.
    """
    events = EventSink.from_environment()
    events.answer_sigterm()
    job = from_plain(Job, json.loads(Path(os.environ[JOB_VARIABLE]).read_text(encoding="utf-8")))
    code = 0
    try:
        _run(job, events)
    except (
        BaseException
    ) as error:  # whatever ends a trial, SystemExit of user code included, must be told to the parent
        code = 1
        _report(error, job, events)
    _clean_up(events)
    with contextlib.suppress(Exception):  # what user code has put in their place may do anything
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _run(job: Job, events: EventSink) -> None:
    try:
        import torch
    except ImportError as error:
        raise _NoTorch(f"{sys.executable} cannot import torch: {error}") from error
    events.send(Hello(os.getpid(), platform.python_version(), torch.__version__))
    if job.kind == "inspect":
        from gputune_tui.trainer.inspection import inspect_workload

        events.send(inspect_workload(job))
        events.send(Done())
        return
    # Needed for the report of a trial that may open no further file by then.
    import gputune_tui.trainer.classify  # noqa: F401
    from gputune_tui.trainer.session import run_trial

    run_trial(job, events)


class _NoTorch(Exception):
    """The chosen interpreter has no torch."""


def _clean_up(events: EventSink) -> None:
    """Only now that everything is reported: user code that hangs or fails in its `close` costs no result."""
    session = sys.modules.get("gputune_tui.trainer.session")
    if session is not None:
        session.close_all(events)


def _report(error: BaseException, job: Job, events: EventSink) -> None:
    import traceback

    if isinstance(error, _NoTorch):
        events.send(Error(FailureReason.INVALID, str(error)))
        return
    # Frames of the traceback pin what the trial allocated; the cap must not stop the report.
    from gputune_tui.trainer.memory import lift_data_limit
    from gputune_tui.trainer.session import cap_in_force, last_peaks

    peaks = last_peaks()
    cap = cap_in_force()
    lift_data_limit()
    gc.collect()
    from gputune_tui.trainer.classify import classify
    from gputune_tui.trainer.faults import OverBudget
    from gputune_tui.trainer.worst_case import PHASES

    if isinstance(error, OverBudget):
        events.send(Memory(MemoryPeaks(device_peak_bytes=error.needs_bytes), error.needs_bytes))
    elif peaks is not None:
        events.send(Memory(peaks))
    told = classify(error, cap, job.budget_bytes, peaks.device_peak_bytes if peaks else None)
    if (place := PHASES.get(events.current_phase)) is not None:
        told = replace(told, message=f"{told.message} ({place})")
    events.send(told)
    traceback.print_exception(type(error), error, error.__traceback__)
