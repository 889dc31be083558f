"""What the engine says: plain, serialisable values, in the order in which things happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from gputune_tui.domain.conditions import Neighbour
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget, StudyIdentity
from gputune_tui.domain.trial import Trial
from gputune_tui.engine.wire import decode_tagged, read_tagged, tagged, to_line
from gputune_tui.ranking.statistics import Verdict
from gputune_tui.search.race import Standing


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
class Confirming:
    """The best trial so far is launched again: the fastest of many is likely one of those that were lucky."""

    trial_id: int
    launches: int
    """That are added."""


@dataclass(frozen=True)
class Contender:
    """How a trial stands against the leader of a race."""

    trial_id: int
    standing: Standing
    ratio: float | None = None
    """Of its throughput over the leader's; None of the leader itself, and where nothing compares them."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Dropped:
    """A trial left the race."""

    trial: Contender
    leader_id: int | None


@dataclass(frozen=True)
class RoundFinished:
    """Every finalist of a race was launched once more."""

    rounds: int
    """Of the finals, so far."""
    leader_id: int
    others: tuple[Contender, ...]


@dataclass(frozen=True)
class RaceFinished:
    """The finals of a race are over; the leaderboard has the ranks."""

    leader_id: int
    others: tuple[Contender, ...]
    """All that were measured, the failed ones left out."""
    margin_fraction: float
    elapsed_s: float


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
    margin_fraction: float = 0.03
    elapsed_s: float | None = None
    """Wall time that it took."""


@dataclass(frozen=True)
class Problem:
    """Something went wrong that does not end the work."""

    text: str


@dataclass(frozen=True)
class DeviceInUse:
    """The command is not carried out, since somebody else computes on the device and nobody has said to share it."""

    device: str
    others: tuple[Neighbour, ...]


@dataclass(frozen=True)
class StudyTrials:
    """The stored trials of the open generation: after StudyOpened, and again where a reader fell far behind.

    Several in a row, the last one marked, hold them all; together they replace whatever the reader has.
    """

    trials: tuple[Trial, ...]
    baseline: TrainSettings
    """The baseline of this study: what guard and ratios of a leaderboard compare with."""
    first: bool = True
    last: bool = True


@dataclass(frozen=True)
class TaskStarted:
    """A command, or the opening of a study, began."""

    title: str
    """"open", "search", "trial" or "a/b"."""


@dataclass(frozen=True)
class TaskEnded:
    """A command, or the opening of a study, is over. Title "engine": the engine process itself has ended."""

    title: str
    error: str | None
    """One sentence."""
    exit_code: int
    """As the command line's; 130 where it was cancelled."""
    cancelled: bool = False


@dataclass(frozen=True)
class Exported:
    """A file was written."""

    path: str
    trial_id: int
    remarks: tuple[str, ...] = ()
    """What the file cannot hold, or needs beside it."""


@dataclass(frozen=True)
class Previewed:
    """What a file would hold."""

    trial_id: int | None
    target: str
    text: str
    problem: str | None = None
    """Why it cannot be written in that form."""


@dataclass(frozen=True)
class QueueChanged:
    """What waits for its turn, by title."""

    waiting: tuple[str, ...]


EngineEvent = (
    StudyOpened
    | StudyTrials
    | SearchPlanned
    | TrialStarted
    | TrialProgress
    | TrialFinished
    | PairFinished
    | Confirming
    | Dropped
    | RoundFinished
    | RaceFinished
    | SearchFinished
    | Compared
    | Problem
    | DeviceInUse
    | TaskStarted
    | TaskEnded
    | Exported
    | Previewed
    | QueueChanged
)
_EVENTS: dict[str, type[EngineEvent]] = {cls.__name__: cls for cls in get_args(EngineEvent)}


def encode_event(event: EngineEvent) -> bytes:
    """One line for the screen, newline included."""
    fields = tagged(event)
    return to_line(fields.pop("kind"), fields)


def decode_event(line: bytes) -> EngineEvent:
    """Read one line.

    Raises:
        ProtocolError: not JSON, of another version, an unknown event, or a wrong field.
    """
    return decode_tagged(_EVENTS, *read_tagged(line))
