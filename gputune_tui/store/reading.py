"""Read a study: merge all journals of its directory into generations and trials."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gputune_tui.domain.environment import Environment
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import StudyIdentity
from gputune_tui.domain.trial import Failure, FailureReason, Trial, TrialState
from gputune_tui.errors import StudyError
from gputune_tui.ranking.feasibility import passed_host_budget
from gputune_tui.store.journal import journals, read_journal, sections
from gputune_tui.store.records import (
    GenerationOpened,
    OverheadMeasured,
    Record,
    TrialBegan,
    TrialEnded,
    WriterStarted,
    is_alive,
)

BUDGET_REASONS = (FailureReason.OVER_BUDGET, FailureReason.DEVICE_OOM, FailureReason.HOST_OOM)


@dataclass(frozen=True)
class Generation:
    """The trials of one identity."""

    number: int
    """1-based, by the time it was first opened: it stays when the generation is opened again."""
    identity: StudyIdentity
    trials: tuple[Trial, ...]
    """By id."""
    fixed_overhead_bytes: int | None
    opened_at: float
    """Unix time at which it was last opened."""


@dataclass(frozen=True)
class StudyContents:
    """Everything that the journals of a study say."""

    path: Path
    generations: tuple[Generation, ...]
    """By the time they were last opened; the last is the current one."""
    problems: tuple[str, ...]
    """Lines that were skipped, by file and number."""
    records: tuple[Record, ...]
    """All records as read, each after the `WriterStarted` of its writer, for one who has to write them anew."""
    other_writers: tuple[WriterStarted, ...]
    """Writers of other processes that are alive now."""

    @property
    def current(self) -> Generation | None:
        """The generation opened last."""
        return self.generations[-1] if self.generations else None

    def generation_of(self, identity: StudyIdentity) -> Generation | None:
        """The generation of this identity."""
        return next((g for g in self.generations if same_identity(g.identity, identity)), None)

    @property
    def next_trial_id(self) -> int:
        """One more than the largest id in use."""
        return 1 + max((trial.id for g in self.generations for trial in g.trials), default=0)


def same_identity(a: StudyIdentity, b: StudyIdentity) -> bool:
    """True where results of `a` and `b` may stand in one ranking.

    The environment counts as far as it decides speed or memory: host, device, driver, CUDA, torch, Python, effective
    CPUs and the size of /dev/shm. Total memory does not: a container's limit may differ from one start to the next,
    and the budget is no part of a study.
    """
    return (
        a.workload == b.workload
        and a.content_hash == b.content_hash
        and a.global_batch_size == b.global_batch_size
        and a.cold == b.cold
        and comparable(a.environment) == comparable(b.environment)
    )


def comparable(environment: Environment) -> Environment:
    """The environment without what may differ between comparable runs."""
    return replace(environment, host_memory_bytes=None)


def identity_changes(old: StudyIdentity, new: StudyIdentity) -> list[str]:
    """What makes `new` another identity, in words."""
    changes = []
    if old.workload != new.workload:
        changes.append("the workload or its options")
    elif old.content_hash != new.content_hash:
        changes.append("the workload's source")
    if old.global_batch_size != new.global_batch_size:
        changes.append(f"the global batch ({old.global_batch_size} -> {new.global_batch_size})")
    if old.cold != new.cold:
        changes.append(f"the page cache ({'dropped' if old.cold else 'kept'} -> {'dropped' if new.cold else 'kept'})")
    before, after = comparable(old.environment), comparable(new.environment)
    for name in Environment.__dataclass_fields__:
        if getattr(before, name) != getattr(after, name):
            changes.append(f"{name.replace('_', ' ')} ({getattr(before, name)} -> {getattr(after, name)})")
    return changes


def read_study(path: Path) -> StudyContents:
    """Read and merge the journals; an empty directory, or one that is not there yet, is an empty study.

    Raises:
        StudyError: it cannot be read, holds files but no journal, or a journal is damaged in the middle.
    """
    journals_records: list[list[Record]] = []
    problems: list[str] = []
    for journal in journals(path):
        found, skipped = read_journal(journal)
        journals_records.append(found)
        problems += skipped
    records: list[Record] = []
    alive: list[WriterStarted] = []
    merger = Merger()
    for section in sections(journals_records):
        if section.writer is not None:
            records.append(section.writer)
        records += section.records
        is_running = section.writer is not None and is_alive(section.writer)
        if section.writer is not None and is_running:
            alive.append(section.writer)
        merger.take(section.records, is_running)
    others = tuple(writer for writer in alive if writer.pid != os.getpid())
    generations = merger.generations()
    return StudyContents(path, generations, tuple(problems + merger.problems), tuple(records), others)


def read_existing_study(path: Path) -> StudyContents:
    """Read a study that has to be there, to show it or to export from it.

    Raises:
        StudyError: there is none, or see `read_study`.
    """
    contents = read_study(path)
    if not contents.generations:
        what = "holds no trials" if path.is_dir() else "does not exist"
        raise StudyError(f"study {path} {what}; `gputune-tui studies` lists those in the default place")
    return contents


class Merger:
    """Puts the sections of several writers together.

    Generation numbers are local to a section: two writers may open different generations at the same moment. What
    joins them is the identity. A trial is known by its id and start: ids are unique as long as nobody deletes the
    folders that claim them.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._merged: list[_Merging] = []

    def take(self, records: Iterable[Record], writer_alive: bool) -> None:
        """Add one section; of two records of a trial's end the later one counts."""
        local: dict[int, _Merging] = {}
        homeless = 0
        for record in records:
            if isinstance(record, GenerationOpened):
                local[record.generation] = self._open(record)
            elif isinstance(record, WriterStarted):
                continue
            elif record.generation not in local:
                homeless += 1
            else:
                local[record.generation].take(record, writer_alive)
        if homeless:
            self.problems.append(f"{homeless} records were skipped: the line that says what they belong to is missing")

    def _open(self, record: GenerationOpened) -> _Merging:
        for merging in self._merged:
            if same_identity(merging.identity, record.identity):
                merging.first_opened_at = min(merging.first_opened_at, record.time)
                merging.last_opened_at = max(merging.last_opened_at, record.time)
                return merging
        self._merged.append(_Merging(record.identity, record.time, record.time))
        return self._merged[-1]

    def generations(self) -> tuple[Generation, ...]:
        """What was taken, by the time of the last opening."""
        self._separate_equal_ids()
        by_first = sorted(self._merged, key=lambda merging: merging.first_opened_at)
        numbered = enumerate(by_first, 1)
        in_order = sorted(numbered, key=lambda pair: (pair[1].last_opened_at, pair[0]))
        return tuple(
            Generation(number, m.identity, m.in_order(), m.overhead_bytes, m.last_opened_at) for number, m in in_order
        )

    def _separate_equal_ids(self) -> None:
        """Give the later of two trials with one id the next free id."""
        everything = [
            (trial.id, trial.started_at or 0.0, m, key) for m in self._merged for key, trial in m.trials.items()
        ]
        everything.sort(key=lambda entry: entry[:2])
        next_id = 1 + max((entry[0] for entry in everything), default=0)
        used: set[int] = set()
        for trial_id, _, merging, key in everything:
            if trial_id in used:
                merging.trials[key] = replace(merging.trials[key], id=next_id)
                self.problems.append(f"two writers used trial id {trial_id}: the later trial is shown as {next_id}")
                next_id += 1
            used.add(trial_id)


@dataclass
class _Merging:
    """A generation while sections are taken."""

    identity: StudyIdentity
    first_opened_at: float
    last_opened_at: float
    overhead_bytes: int | None = None
    trials: dict[tuple[int, float | None], Trial] = field(default_factory=dict)
    """By id and start."""

    def take(self, record: OverheadMeasured | TrialBegan | TrialEnded, writer_alive: bool) -> None:
        if isinstance(record, OverheadMeasured):
            if self.overhead_bytes is None:  # the first one counts: all trials are held against the same figure
                self.overhead_bytes = record.fixed_overhead_bytes
        elif isinstance(record, TrialBegan):
            self.trials.setdefault((record.trial_id, record.time), _unfinished(record, writer_alive))
        else:
            trial = record.trial
            known = self.trials.get((trial.id, trial.started_at))
            # A confirmed trial has a later record with more launches, in another journal perhaps.
            if known is None or len(trial.launches) >= len(known.launches):
                self.trials[trial.id, trial.started_at] = trial

    def in_order(self) -> tuple[Trial, ...]:
        return tuple(sorted(self.trials.values(), key=lambda trial: trial.id))


def _unfinished(record: TrialBegan, writer_alive: bool) -> Trial:
    failure = None if writer_alive else Failure(FailureReason.STALE, "interrupted: the program that ran it ended")
    return Trial(
        id=record.trial_id,
        settings=record.settings,
        state=TrialState.RUNNING if writer_alive else TrialState.FAIL,
        failure=failure,
        budget_bytes=record.budget_bytes,
        started_at=record.time,
        host_budget_bytes=record.host_budget_bytes,
    )


def finished_trial(
    trials: Iterable[Trial], settings: TrainSettings, budget_bytes: int, host_budget_bytes: int | None = None
) -> Trial | None:
    """The trial that makes running `settings` again needless: the resume rule.

    COMPLETE counts under any budget, the last one first. FAIL counts unless the trial was ended from outside, or ran
    out of memory under a smaller budget than the present one: the device's or the host's, whichever it passed.
    """
    found: Trial | None = None
    for trial in trials:
        if trial.settings != settings or not trial.state.is_finished:
            continue
        is_failure = trial.failure is not None and not _worth_another_run(trial, budget_bytes, host_budget_bytes)
        if trial.state is TrialState.COMPLETE or (found is None and is_failure):
            found = trial
    return found


def _worth_another_run(trial: Trial, budget_bytes: int, host_budget_bytes: int | None) -> bool:
    assert trial.failure is not None
    if trial.failure.reason.says_nothing_of_the_settings:
        return True
    had_less = trial.budget_bytes is not None and trial.budget_bytes < budget_bytes  # None is unlimited
    if passed_host_budget(trial):
        now = math.inf if host_budget_bytes is None else host_budget_bytes
        return trial.host_budget_bytes is not None and trial.host_budget_bytes < now
    return trial.failure.reason in BUDGET_REASONS and had_less
