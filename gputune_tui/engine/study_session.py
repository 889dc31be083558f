"""An open study: its trials, its journal, and the way a setting becomes a stored trial."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gputune_tui.domain.job import MeasurePlan
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import Failure, FailureReason, Launch, MemoryPeaks, Trial, TrialState
from gputune_tui.engine.device_lock import DeviceLock
from gputune_tui.engine.device_place import DevicePlace
from gputune_tui.engine.events import EngineEvent, Problem, StudyOpened, TrialFinished, TrialStarted
from gputune_tui.engine.opening import Opened
from gputune_tui.engine.running import run_to_end
from gputune_tui.errors import StoreWriteError
from gputune_tui.ranking.leaderboard import Leaderboard, leaderboard
from gputune_tui.store.reading import StudyContents, finished_trial, identity_changes, read_study
from gputune_tui.store.records import GenerationOpened, OverheadMeasured, Record, TrialBegan, TrialEnded
from gputune_tui.store.writing import StudyWriter
from gputune_tui.trial.launcher import Launcher
from gputune_tui.trial.supervisor import TrialRun


@dataclass(frozen=True)
class Order:
    """How a launch is to be made, where it is not a trial's usual one."""

    plan: MeasurePlan | None = None
    """How long it measures; None is the study's own plan."""
    round: str | None = None
    """As `Launch.round`."""


USUAL = Order()


@dataclass
class TrialDraft:
    """A trial that has begun."""

    id: int
    directory: Path
    settings: TrainSettings
    began: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)


class StudySession:
    """The study that a command works on."""

    def __init__(self, opened: Opened, path: Path, contents: StudyContents, launcher: Launcher) -> None:
        self.opened = opened
        self.path = path
        self.launcher = launcher
        self.reference: TrainSettings | None = None
        """What ratios and the guard compare with; set by the command."""
        known = contents.generation_of(opened.identity)
        self.generation = known.number if known else len(contents.generations) + 1
        self._is_current = known is not None and known is contents.current
        self._contents = contents
        self._trials = {trial.id: trial for trial in known.trials} if known else {}
        self._writer = StudyWriter(path, contents.records)
        self._next_id = contents.next_trial_id
        self._announced = False
        self.fixed_overhead_bytes = known.fixed_overhead_bytes if known else None
        self._durations_s: list[float] = []
        self.place = DevicePlace(opened.device, opened.config.share)

    @property
    def lock(self) -> DeviceLock:
        """Held while a trial runs, unless the device is shared with another instance that holds it."""
        return self.place.lock

    @property
    def trials(self) -> list[Trial]:
        """The trials of this generation, by id."""
        return [trial for _, trial in sorted(self._trials.items())]

    def board(self) -> Leaderboard:
        """The leaderboard under this command's budget."""
        return leaderboard(self.trials, self.opened.budget, self.reference)

    def opening_event(self) -> StudyOpened:
        """What to tell when the study is open."""
        notes = list(self.opened.notes)
        notes += self._contents.problems
        current = self._contents.current
        if not self._is_current and current is not None:
            changes = ", ".join(identity_changes(current.identity, self.opened.identity))
            notes.append(f"generation {self.generation} of this study begins: {changes} changed; old trials are kept")
        for writer in self._contents.other_writers:
            notes.append(
                f"another gputune-tui (pid {writer.pid} on {writer.host}) works on this study; "
                "measuring at the same time on one device makes both slower"
            )
        finished = sum(self.finished(trial.settings) is trial for trial in self.trials)
        return StudyOpened(
            str(self.path), self.opened.identity, self.generation, self.opened.budget, finished, tuple(notes)
        )

    def finished(self, settings: TrainSettings) -> Trial | None:
        """The trial that makes running these settings again needless."""
        budget = self.opened.budget
        return finished_trial(self.trials, settings, budget.device_bytes, budget.host_bytes)

    def begin(self, settings: TrainSettings) -> TrialDraft:
        """Claim an id and write down that the trial begins.

        Raises:
            StoreWriteError: the study cannot be written; nothing was launched.
        """
        self._announce()
        trial_id, directory = self._writer.claim_trial_id(self._next_id)
        self._next_id = trial_id + 1
        draft = TrialDraft(trial_id, directory, settings)
        budget = self.opened.budget
        began = TrialBegan(
            self.generation, trial_id, settings, budget.device_bytes, draft.started_at, budget.host_bytes
        )
        self._append(began)
        return draft

    def _announce(self) -> None:
        """Say in this writer's journal to which generation what follows belongs."""
        if not self._announced:
            self._append(GenerationOpened(self.generation, self.opened.identity, time.time()))
            self._announced = True

    def end(
        self,
        draft: TrialDraft,
        launches: Sequence[Launch],
        failure: Failure | None = None,
        partial: MemoryPeaks | None = None,
    ) -> Trial:
        """Write down how the trial ended.

        Raises:
            StoreWriteError: it is in memory alone; it is written with the next record that can be.
        """
        trial = Trial(
            id=draft.id,
            settings=draft.settings,
            state=TrialState.COMPLETE if failure is None else TrialState.FAIL,
            failure=failure,
            launches=tuple(launches),
            partial_memory=partial,
            budget_bytes=self.opened.budget.device_bytes,
            started_at=draft.started_at,
            elapsed_s=time.monotonic() - draft.began,
            host_budget_bytes=self.opened.budget.host_bytes,
        )
        self._trials[trial.id] = trial
        self._durations_s.append(time.monotonic() - draft.began)
        self._append(TrialEnded(self.generation, trial))
        return trial

    def take_overhead(self, run: TrialRun) -> None:
        """Keep the fixed overhead that the first trial of the study measured."""
        measured = run.seen.fixed_overhead_bytes
        if self.fixed_overhead_bytes is None and measured is not None:
            self.fixed_overhead_bytes = measured
            self._append(OverheadMeasured(self.generation, measured))

    def run(
        self, settings: TrainSettings, number: int, total: int | None, launches: int = 1, order: Order = USUAL
    ) -> Generator[EngineEvent | None, None, Trial]:
        """Run one trial to its end, of one or more launches, and store it. Closing it stores it as interrupted."""
        draft = self.begin(settings)
        yield TrialStarted(draft.id, settings, number, total)
        done: list[Launch] = []
        failure: Failure | None = Failure(FailureReason.KILLED, "interrupted", str(draft.directory / "log.txt"))
        partial: MemoryPeaks | None = None
        ended = False
        try:
            for index in range(launches):
                directory = draft.directory if index == 0 else draft.directory / f"launch{index + 1}"
                run = yield from self._launch(settings, directory, draft.id, order.plan)
                failure = run.failure
                if failure is not None:
                    partial = run.seen.memory
                    break
                done.append(replace(run.launch(), round=order.round))
            ended = True
            trial = self.end(draft, done if failure is None else (), failure, partial)
        finally:
            if not ended:
                self.end(draft, (), failure, partial)
        yield TrialFinished(trial, number, total, self.remaining_s(number, total))
        return trial

    def run_again(
        self,
        trial: Trial,
        launches: int,
        keep: bool = True,
        number: int = 1,
        total: int | None = 1,
        order: Order = USUAL,
    ) -> Generator[EngineEvent | None, None, Trial | None]:
        """Add launches to a COMPLETE trial and store it anew with each. Closing it keeps the whole ones.

        Args:
            trial: as it is stored.
            launches: how many.
            keep: without it they take the place of those outside of races, of which there must be as many.
            number: 1-based place among the trials of this command.
            total: of these.

        Returns:
            The trial; None where a launch failed, which is said.
        """
        self._announce()
        yield TrialStarted(trial.id, trial.settings, number, total)
        began, again, added = time.monotonic(), trial, list[Launch]()
        for index in range(len(trial.launches), len(trial.launches) + launches):
            directory = self._writer.directory_of(trial.id) / f"launch{index + 1}"
            run = yield from self._launch(trial.settings, directory, trial.id, order.plan)
            if run.failure is not None:
                if order.round is not None and not run.failure.reason.says_nothing_of_the_settings:
                    # Whoever goes on with the race must know that this launch was made, or makes the round anew.
                    failed = failed_launch(run.failure, run.seen.memory, order.round)
                    self._extend(trial, (*trial.launches, *added, failed), time.monotonic() - began)
                yield Problem(f"trial {trial.id}, launched again, ended: {run.failure.message}; its figures stay")
                return None
            added.append(replace(run.launch(), round=order.round))
            if keep or len(added) == launches:
                kept = (*trial.launches, *added) if keep else with_new_launches(trial.launches, added)
                again = self._extend(trial, kept, time.monotonic() - began)
        yield TrialFinished(again, number, total, None)
        return again

    def _extend(self, trial: Trial, launches: Sequence[Launch], more_s: float) -> Trial:
        again = replace(trial, launches=tuple(launches), elapsed_s=(trial.elapsed_s or 0.0) + more_s)
        self._trials[trial.id] = again
        self._append(TrialEnded(self.generation, again))
        return again

    def _launch(
        self, settings: TrainSettings, directory: Path, trial_id: int, plan: MeasurePlan | None = None
    ) -> Generator[EngineEvent | None, None, TrialRun]:
        """One launch to its end, with the device to itself."""
        yield from self.take_device()
        try:
            job = self.opened.job(settings, self.fixed_overhead_bytes, plan=plan)
            watch = self.place.watch()
            run = yield from run_to_end(self.launcher, job, directory, self.opened.limits, trial_id, watch)
        finally:
            self.place.release()
        self.take_overhead(run)
        return run

    def take_device(self) -> Generator[EngineEvent | None, None, None]:
        """Wait until nobody else measures on the device; with `--share` not at all."""
        yield from self.place.take()

    def remaining_s(self, number: int, total: int | None) -> float | None:
        """Estimated time for the trials of this command that are left."""
        if total is None or not self._durations_s or number >= total:
            return None
        return (total - number) * sum(self._durations_s) / len(self._durations_s)

    def flush(self) -> None:
        """Try once more to write what could not be written. Raises nothing: `begin` and `end` have told."""
        with suppress(StoreWriteError):
            if self._writer.unsaved:
                self._writer.flush()

    def close(self) -> None:
        """Close the journal, and stop looking at the device."""
        self.place.close()
        self._writer.close()

    def _append(self, record: Record) -> None:
        self._writer.append(record)


def failed_launch(failure: Failure, seen: MemoryPeaks | None, round_name: str) -> Launch:
    """What is kept of a launch in a race that failed: that it was made, its peaks so far, and why it ended."""
    note = f"a launch of its race failed: {failure.message}"
    return Launch((), (), 0, seen or MemoryPeaks(), notes=(note,), round=round_name)


def with_new_launches(launches: Sequence[Launch], new: Sequence[Launch]) -> tuple[Launch, ...]:
    """The launches with new ones in the place of those outside of races, in their order."""
    coming = iter(new)
    return tuple(next(coming) if launch.round is None else launch for launch in launches)


def open_session(opened: Opened, path: Path, launcher: Launcher) -> StudySession:
    """Read what is in the study and open it for this identity.

    Raises:
        StudyError: it is damaged or no study.
    """
    return StudySession(opened, path, read_study(path), launcher)
