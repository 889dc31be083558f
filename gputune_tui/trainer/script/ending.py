"""How a script's processes end once the trial has what it wants, and what they tell when they end before."""

from __future__ import annotations

import multiprocessing
import os
import sys
import types
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from gputune_tui.domain.job import Job
from gputune_tui.domain.protocol import Error
from gputune_tui.domain.trial import FailureReason, MemoryPeaks
from gputune_tui.trainer.classify import classify
from gputune_tui.trainer.events import EventSink
from gputune_tui.trainer.faults import SettingsNotApplicable
from gputune_tui.trainer.memory import Cap, lift_data_limit
from gputune_tui.trainer.script.patches import Function, Patches
from gputune_tui.trainer.script.ranks import OVER_FILE, trial_folder


class Ending:
    """Reports an exception that ends the script, and refusals of our own, which the script must not catch.

    Args:
        peaks: the memory peaks until then, sent before the report.
    """

    def __init__(
        self, job: Job, events: EventSink, peaks: Callable[[], MemoryPeaks | None], cap: Callable[[], Cap | None]
    ) -> None:
        self._job = job
        self._events = events
        self._peaks = peaks
        self._cap = cap
        self.is_over = False
        """All is reported: what comes now is the script's own clearing up."""
        self.owner = os.getpid()

    def install(self) -> None:
        """Begin to listen for exceptions."""
        self._chained_hook = sys.excepthook
        sys.excepthook = self._report

    def refuse(self, reason: str) -> NoReturn:
        """End the trial: these settings do not apply to this script.

        Raises:
            SettingsNotApplicable: always; the script may catch it, but the trial has been told.
        """
        if not self.is_over:
            self.is_over = True
            self._events.send(Error(FailureReason.INVALID, reason))
        raise SettingsNotApplicable(reason)

    def _report(self, kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        """An exception that ends the script is told with its type, file and line; then the script's own hook runs."""
        if os.getpid() == self.owner and not self.is_over:
            self.is_over = True
            cap = self._cap()
            lift_data_limit()
            peaks = self._peaks()
            peak = peaks.device_peak_bytes if peaks else None
            self._events.send(classify(error, cap, self._job.budget_bytes, peak))
        self._chained_hook(kind, error, trace)


def end_with_children(patches: Patches) -> None:
    """A process that waits for ranks it has started itself (mp.spawn) ends with them: what it does after the training
    is no part of a trial."""
    over = str(trial_folder() / OVER_FILE)

    def joining(original: Function) -> Function:
        def join(process: Any, timeout: float | None = None) -> None:
            original(process, timeout)
            if not process.daemon and os.access(over, os.F_OK) and not process.is_alive() and not _ranks_alive():
                sys.exit(0)

        return join

    patches.wrap(BaseProcess, "join", joining)


def _ranks_alive() -> bool:
    return any(not process.daemon for process in multiprocessing.active_children())
