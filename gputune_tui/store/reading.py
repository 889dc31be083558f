"""Read a study: merge all journals of its directory into generations and trials."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gputune_tui.domain.environment import Environment
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import StudyIdentity
from gputune_tui.domain.trial import Failure, FailureReason, Trial, TrialState
from gputune_tui.errors import ProtocolError, StudyError
from gputune_tui.store.records import (
    ForeignRecord,
    GenerationOpened,
    OverheadMeasured,
    Record,
    TrialBegan,
    TrialEnded,
    WriterStarted,
    decode_record,
    is_alive,
)

JOURNAL_PATTERN = "journal-*.jsonl"
BUDGET_REASONS = (FailureReason.OVER_BUDGET, FailureReason.DEVICE_OOM, FailureReason.HOST_OOM)


@dataclass(frozen=True)
class Generation:
    """The trials of one identity."""

    number: int
    """1-based, by the time they were last opened."""
    identity: StudyIdentity
    trials: tuple[Trial, ...]
    """By id."""
    fixed_overhead_bytes: int | None
    opened_at: float


@dataclass(frozen=True)
class StudyContents:
    """Everything that the journals of a study say."""

    path: Path
    generations: tuple[Generation, ...]
    """Oldest first; the last is the current one."""
    problems: tuple[str, ...]
    """Lines that were skipped, by file and number."""
    records: tuple[Record, ...]
    """All records as read, for a writer that has to write them anew."""
    other_writers: tuple[WriterStarted, ...]
    """Writers that are alive now."""

    @property
    def current(self) -> Generation | None:
        """The newest generation."""
        return self.generations[-1] if self.generations else None

    def generation_of(self, identity: StudyIdentity) -> Generation | None:
        """The newest generation of the same identity."""
        return next((g for g in reversed(self.generations) if same_identity(g.identity, identity)), None)

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
    records: list[Record] = []
    problems: list[str] = []
    writers: list[WriterStarted] = []
    merger = _Merger()
    for journal in journals(path):
        found, skipped = read_journal(journal)
        records += found
        problems += skipped
        writer = next((r for r in found if isinstance(r, WriterStarted)), None)
        alive = writer is not None and is_alive(writer)
        if writer is not None and alive:
            writers.append(writer)
        merger.take(found, alive)
    return StudyContents(path, merger.generations(), tuple(problems), tuple(records), tuple(writers))


def journals(path: Path) -> list[Path]:
    """The journals of a study, sorted by name.

    Raises:
        StudyError: not a directory, unreadable, or a directory of something else.
    """
    try:
        entries = sorted(path.iterdir())
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise StudyError(f"{path} is a file, not a study directory; choose another --study") from None
    except OSError as error:
        raise StudyError(f"cannot read study {path}: {error.strerror}") from error
    found = [entry for entry in entries if entry.match(JOURNAL_PATTERN)]
    if entries and not found and any(entry.name != "trials" for entry in entries):
        raise StudyError(f"{path} holds files but is not a study; choose an empty or a new directory")
    return found


def read_journal(journal: Path) -> tuple[list[Record], list[str]]:
    """The records of one journal and, in words, what was skipped.

    A last line that is torn is the mark of a writer that was killed: it is skipped. A line of another version is
    skipped too. Nothing is ever written to the file.

    Raises:
        StudyError: it cannot be read, or a line before the last is damaged.
    """
    try:
        data = journal.read_bytes()
    except OSError as error:
        raise StudyError(f"cannot read {journal}: {error.strerror}") from error
    *lines, rest = data.split(b"\n")
    records: list[Record] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(decode_record(line))
        except ForeignRecord as foreign:
            problems.append(f"{journal.name}:{number} was skipped: {foreign}")
        except ProtocolError as damage:
            if number == len(lines) and not rest:
                problems.append(f"{journal.name}:{number} was skipped: its last line is damaged")
                continue
            raise StudyError(
                f"{journal}:{number} is damaged ({damage}); nothing was changed: move or mend that line, "
                "or choose another --study"
            ) from None
    if rest:
        problems.append(f"{journal.name}:{len(lines) + 1} was skipped: its last line is cut off")
    return records, problems


class _Merger:
    """Puts the records of several journals together, whatever their order.

    Generation numbers are local to a journal: two writers may open different generations at the same moment. What
    joins them is the identity.
    """

    def __init__(self) -> None:
        self._merged: list[_Merging] = []

    def take(self, records: Iterable[Record], writer_alive: bool) -> None:
        local: dict[int, _Merging] = {}
        for record in records:
            if isinstance(record, GenerationOpened):
                local[record.generation] = self._open(record)
            elif isinstance(record, WriterStarted) or record.generation not in local:
                continue
            elif isinstance(record, OverheadMeasured):
                merging = local[record.generation]
                merging.overhead_bytes = merging.overhead_bytes or record.fixed_overhead_bytes
            elif isinstance(record, TrialBegan):
                local[record.generation].trials.setdefault(record.trial_id, _unfinished(record, writer_alive))
            else:
                local[record.generation].trials[record.trial.id] = record.trial

    def _open(self, record: GenerationOpened) -> _Merging:
        for merging in self._merged:
            if same_identity(merging.identity, record.identity):
                merging.opened_at = max(merging.opened_at, record.time)
                return merging
        self._merged.append(_Merging(record.identity, record.time))
        return self._merged[-1]

    def generations(self) -> tuple[Generation, ...]:
        in_order = sorted(self._merged, key=lambda merging: merging.opened_at)
        return tuple(
            Generation(number, m.identity, tuple(t for _, t in sorted(m.trials.items())), m.overhead_bytes, m.opened_at)
            for number, m in enumerate(in_order, 1)
        )


@dataclass
class _Merging:
    """A generation while journals are read."""

    identity: StudyIdentity
    opened_at: float
    overhead_bytes: int | None = None
    trials: dict[int, Trial] = field(default_factory=dict)


def _unfinished(record: TrialBegan, writer_alive: bool) -> Trial:
    failure = None if writer_alive else Failure(FailureReason.STALE, "interrupted: the program that ran it ended")
    return Trial(
        id=record.trial_id,
        settings=record.settings,
        state=TrialState.RUNNING if writer_alive else TrialState.FAIL,
        failure=failure,
        budget_bytes=record.budget_bytes,
        started_at=record.time,
    )


def finished_trial(trials: Iterable[Trial], settings: TrainSettings, budget_bytes: int) -> Trial | None:
    """The trial that makes running `settings` again needless: the resume rule.

    COMPLETE counts under any budget. FAIL counts unless the trial was ended from outside, or ran out of memory under
    a smaller budget than the present one.
    """
    found: Trial | None = None
    for trial in trials:
        if trial.settings != settings or not trial.state.is_finished:
            continue
        is_failure = trial.failure is not None and not _worth_another_run(trial, budget_bytes)
        if trial.state is TrialState.COMPLETE or (found is None and is_failure):
            found = trial
    return found


def _worth_another_run(trial: Trial, budget_bytes: int) -> bool:
    assert trial.failure is not None
    if trial.failure.reason.says_nothing_of_the_settings:
        return True
    return trial.failure.reason in BUDGET_REASONS and (trial.budget_bytes or 0) < budget_bytes
