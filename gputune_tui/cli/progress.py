"""Progress on stderr: a live line with the time left on a terminal, one plain line per event elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import Trial, TrialState
from gputune_tui.engine.events import (
    Confirming,
    Dropped,
    EngineEvent,
    PairFinished,
    Problem,
    RaceFinished,
    RoundFinished,
    SearchFinished,
    SearchPlanned,
    StudyOpened,
    TrialFinished,
    TrialProgress,
    TrialStarted,
)
from gputune_tui.engine.race_text import dropped_text, finished_text, round_text
from gputune_tui.ranking.statistics import throughput
from gputune_tui.ranking.wording import settings_text
from gputune_tui.text import printable
from gputune_tui.units import bytes_text, ratio_with_interval_text, seconds_text, three_digits

REDRAW_S = 0.5
"""The live line changes at most twice a second: this program must idle while a block is timed."""


def confirming_text(event: Confirming) -> str:
    """In words."""
    launches = "1 more launch" if event.launches == 1 else f"{event.launches} more launches"
    return f"trial {event.trial_id} is the best so far: {launches} to confirm it"


class ProgressPrinter:
    """Writes what the engine says to stderr."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._drawn = False
        self._last_draw = 0.0
        self._reference: TrainSettings | None = None
        self._running: dict[int, TrialStarted] = {}
        """By trial: of a comparison both arms."""
        self._arms: dict[int, str] = {}

    def show(self, event: EngineEvent) -> None:
        """Show one event."""
        if isinstance(event, StudyOpened):
            self._opened(event)
        elif isinstance(event, SearchPlanned):
            self._planned(event)
        elif isinstance(event, TrialStarted):
            self._running[event.trial_id] = event
            if event.arm:
                self._arms[event.trial_id] = f" ({event.arm})"
            if not self._live:
                place, arm = self._place(event.number, event.total), self._arm(event.trial_id)
                self.line(f"{place} trial {event.trial_id}{arm} started: {self._settings(event.settings)}")
        elif isinstance(event, TrialProgress):
            self._progress(event)
        elif isinstance(event, TrialFinished):
            self.line(self._finished(event))
        elif isinstance(event, PairFinished):
            self.line(_pair(event))
        elif isinstance(event, Confirming):
            self.line(confirming_text(event))
        elif isinstance(event, Dropped):
            self.line(dropped_text(event))
        elif isinstance(event, RoundFinished):
            self.line(round_text(event))
        elif isinstance(event, RaceFinished):
            self.line(finished_text(event))
        elif isinstance(event, SearchFinished) and event.stopped_because:
            self.line(f"search stopped: {event.stopped_because}")
        elif isinstance(event, Problem):
            self.line(event.text)

    def line(self, text: str) -> None:
        """One line that stays."""
        self.clear()
        self._stream.write(printable(text) + "\n")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the live line."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False

    def _opened(self, event: StudyOpened) -> None:
        environment = event.identity.environment
        name = f" ({environment.device_name})" if environment.device_name else ""
        self.line(
            f"workload {event.identity.workload.name} on {environment.device}{name}, "
            f"torch {environment.torch}, global batch {event.identity.global_batch_size}"
        )
        self.line(f"budget {bytes_text(event.budget.device_bytes)}: {event.budget.source}")
        if event.budget.host_bytes is not None:
            self.line(f"host's budget {bytes_text(event.budget.host_bytes)}: {event.budget.host_source}")
        finished = event.finished_trials
        self.line(f"study {event.path}" + (f": {finished} finished trial{'s'[: finished > 1]}" if finished else ""))
        for note in event.notes:
            self.line(f"note: {note}")

    def _planned(self, event: SearchPlanned) -> None:
        self._reference = event.reference
        self.line(
            f'{"default space" if event.is_default else "space"} "{event.space}": {event.cells} settings'
            + (f", {event.already_finished} already finished" if event.already_finished else "")
            + (f", {event.dropped} do not divide the global batch" if event.dropped else "")
            + (f", {event.collapsed} cannot differ from another" if event.collapsed else "")
        )

    def _progress(self, event: TrialProgress) -> None:
        if event.phase == "detect":
            self.line("looking at the script's first steps")
        now, running = time.monotonic(), self._running.get(event.trial_id)
        if not self._live or now - self._last_draw < REDRAW_S or running is None:
            return
        speed = f", {three_digits(event.samples_per_s)} samples/s" if event.samples_per_s else ""
        blocks = f" block {event.blocks} of {event.planned_blocks}" if event.planned_blocks else ""
        place, arm = self._place(running.number, running.total), self._arm(event.trial_id)
        text = f"{place} {self._settings(running.settings)}{arm}: {event.phase}{blocks}{speed}"
        self.clear()
        self._stream.write(printable(text)[: shutil.get_terminal_size().columns - 1])
        self._stream.flush()
        self._drawn, self._last_draw = True, now

    def _finished(self, event: TrialFinished) -> str:
        trial = event.trial
        self._running.pop(trial.id, None)
        left = f", about {seconds_text(event.remaining_s)} left" if event.remaining_s else ""
        place, arm = self._place(event.number, event.total), self._arm(trial.id)
        return f"{place} trial {trial.id}{arm} {self._settings(trial.settings)}: {outcome_text(trial)}{left}"

    def _settings(self, settings: TrainSettings) -> str:
        if self._reference is None:
            return settings_text(settings, None)
        return settings.text(self._reference) or "baseline"

    def _arm(self, trial_id: int) -> str:
        return self._arms.get(trial_id, "")

    @staticmethod
    def _place(number: int, total: int | None) -> str:
        return f"[{number}/{total}]" if total else f"[{number}]"


def outcome_text(trial: Trial) -> str:
    """How a trial ended, in one line."""
    if trial.state is TrialState.COMPLETE:
        speed = throughput(trial.launches)
        memory = trial.memory
        peak = bytes_text(memory.device_peak_bytes if memory else None)
        if speed is None:
            return f"complete, peak {peak}"
        interval = f"{three_digits(speed.low)} to {three_digits(speed.high)}"
        return f"{three_digits(speed.value)} samples/s ({interval}), peak {peak}"
    failure = trial.failure
    return f"{failure.reason.value}: {failure.message}" if failure else trial.state.value


def _pair(event: PairFinished) -> str:
    figures = ratio_with_interval_text(event.ratio, event.low, event.high, "A")
    found = "" if figures is None else f"B is {figures}: "
    return f"pair {event.pairs}: {found}{event.verdict}"
