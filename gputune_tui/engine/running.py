"""Drive one launch to its end as a generator: it yields news, and closing it ends the trial."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from gputune_tui.domain.job import Job
from gputune_tui.domain.protocol import BlockDone, Event, Phase
from gputune_tui.engine.events import EngineEvent, TrialProgress
from gputune_tui.trial.launcher import Launcher
from gputune_tui.trial.supervisor import Limits, TrialRun
from gputune_tui.trial.watch import Watch

Task = Generator[EngineEvent | None, None, None]
"""A piece of the engine's work: events as they come, None as a tick on which the caller may close it."""
TICK_S = 0.1


def run_to_end(
    launcher: Launcher, job: Job, directory: Path, limits: Limits, trial_id: int, watch: Watch | None = None
) -> Generator[EngineEvent | None, None, TrialRun]:
    """Launch `job` and follow it until its last process is gone; returns the finished run.

    Closing the generator stops the trial and returns only when nothing of it is left.
    """
    while not launcher.is_ready(job, TICK_S):
        yield None
    run = TrialRun(launcher.launch(job, directory), limits, bool(job.workload.command), watch=watch)
    progress = Progress(trial_id)
    try:
        while not run.finished:
            yield from progress.of(run.poll())
            yield None
    finally:
        run.close()
    return run


class Progress:
    """Turns a trial's events into progress, at most one per poll."""

    def __init__(self, trial_id: int) -> None:
        self._trial_id = trial_id
        self._phase = "start"
        self._blocks = 0

    def of(self, events: list[Event]) -> list[EngineEvent]:
        """The progress that `events` mean: the last of them counts."""
        latest: TrialProgress | None = None
        for event in events:
            if isinstance(event, Phase):
                changed, self._phase = event.name != self._phase, event.name
                if changed:
                    latest = TrialProgress(self._trial_id, self._phase, event.detail, self._blocks)
            elif isinstance(event, BlockDone):
                self._blocks += 1
                latest = TrialProgress(
                    self._trial_id,
                    self._phase,
                    blocks=self._blocks,
                    planned_blocks=event.planned,
                    samples_per_s=event.block.samples_per_s,
                )
        return [] if latest is None else [latest]
