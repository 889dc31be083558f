"""What the engine says: plain, serialisable values, in the order in which things happened."""

from __future__ import annotations

from dataclasses import dataclass

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget, StudyIdentity
from gputune_tui.domain.trial import Trial
from gputune_tui.ranking.statistics import Verdict


@dataclass(frozen=True)
class StudyOpened:
    """The workload was read and its study is open."""

    path: str
    identity: StudyIdentity
    generation: int
    budget: MemoryBudget
    finished_trials: int
    """Finished trials of this generation that are already there."""
    notes: tuple[str, ...] = ()
    """What a user should know: a new generation and why, skipped journal lines, no GPU, ..."""


@dataclass(frozen=True)
class SearchPlanned:
    """The cells that a search will go through."""

    space: str
    """The space as text; of the default space, what was chosen."""
    is_default: bool
    cells: int
    already_finished: int
    dropped: int
    """Combinations that do not divide the global batch."""
    collapsed: int
    """Combinations equal to another one."""
    reference: TrainSettings


@dataclass(frozen=True)
class TrialStarted:
    """A trial was launched."""

    trial_id: int
    settings: TrainSettings
    number: int
    """1-based place among the trials of this command."""
    total: int | None
    arm: str = ""
    """"A" or "B" in a comparison."""


@dataclass(frozen=True)
class TrialProgress:
    """News of the running trial; a newer one replaces an older one."""

    trial_id: int
    phase: str
    detail: str = ""
    blocks: int = 0
    planned_blocks: int = 0
    samples_per_s: float | None = None
    """Of the last block."""


@dataclass(frozen=True)
class TrialFinished:
    """A trial ended and is stored."""

    trial: Trial
    number: int
    total: int | None
    remaining_s: float | None
    """Estimated time for what is left, from the trials of this command so far."""


@dataclass(frozen=True)
class PairFinished:
    """A pair of launches was compared."""

    pairs: int
    ratio: float | None
    low: float | None
    high: float | None
    verdict: Verdict


@dataclass(frozen=True)
class SearchFinished:
    """No further trial will be asked for."""

    stopped_because: str | None
    """None where every cell was run."""


@dataclass(frozen=True)
class Compared:
    """The comparison is over."""

    a: Trial
    b: Trial
    ratio: float | None
    low: float | None
    high: float | None
    confidence: float
    verdict: Verdict
    launches: int
    pairs: int
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """Something went wrong that does not end the work."""

    text: str


EngineEvent = (
    StudyOpened
    | SearchPlanned
    | TrialStarted
    | TrialProgress
    | TrialFinished
    | PairFinished
    | SearchFinished
    | Compared
    | Problem
)
