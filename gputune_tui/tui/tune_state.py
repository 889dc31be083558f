"""What the tuning pane knows: the open study, its trials, A and B, and what runs. Engine events go in, no widget."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gputune_tui.domain.choices import Ground
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import Trial, TrialState
from gputune_tui.engine.events import (
    Compared,
    Confirming,
    Dropped,
    EngineEvent,
    Exported,
    PairFinished,
    Problem,
    QueueChanged,
    RaceFinished,
    RoundFinished,
    SearchFinished,
    SearchPlanned,
    StudyOpened,
    StudyTrials,
    TaskEnded,
    TaskStarted,
    TrialFinished,
    TrialProgress,
    TrialStarted,
)
from gputune_tui.engine.race_text import dropped_text, finished_text, round_text
from gputune_tui.ranking.leaderboard import Leaderboard, leaderboard
from gputune_tui.ranking.statistics import Ratio, Verdict
from gputune_tui.ranking.wording import speed_text, verdict_text
from gputune_tui.units import bytes_text, ratio_with_interval_text, seconds_text

KEPT_MESSAGES = 500
TIMED_PHASE = "measure"


@dataclass(frozen=True)
class Message:
    """Something that was said."""

    text: str
    is_error: bool = False


@dataclass
class Comparison:
    """A against B, as far as it has come."""

    a: TrainSettings
    b: TrainSettings
    pairs: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict = "undecided"
    over: bool = False
    margin_fraction: float = 0.03
    elapsed_s: float | None = None


@dataclass
class TuneState:
    """The tuning pane's memory. `take` is the only way in for what the engine says."""

    opened: StudyOpened | None = None
    reference: TrainSettings | None = None
    """What the guard compares with: the baseline, or the cell of the search that is nearest to it."""
    a: TrainSettings | None = None
    b: TrainSettings | None = None
    trials: dict[int, Trial] = field(default_factory=dict)
    task: str | None = None
    """Title of what runs."""
    waiting: tuple[str, ...] = ()
    started: TrialStarted | None = None
    progress: TrialProgress | None = None
    plan: SearchPlanned | None = None
    remaining_s: float | None = None
    comparison: Comparison | None = None
    messages: deque[Message] = field(default_factory=lambda: deque(maxlen=KEPT_MESSAGES))
    exported: str | None = None
    """The newest file that was written."""
    _board: Leaderboard | None = None
    _starts: dict[int, TrialStarted] = field(default_factory=dict)
    """By trial that runs: of a comparison both arms."""

    @property
    def ground(self) -> Ground | None:
        """What the knobs' choices depend on; None before a study is open."""
        if self.opened is None:
            return None
        identity = self.opened.identity
        return Ground(identity.environment.device_kind, identity.global_batch_size, identity.environment.effective_cpus)

    @property
    def is_timed(self) -> bool:
        """True while a block may be timed: the screen keeps still."""
        return self.progress is not None and self.progress.phase == TIMED_PHASE

    @property
    def board(self) -> Leaderboard | None:
        """The ranking of all that is known."""
        if self.opened is not None and self._board is None:
            self._board = leaderboard(self.trials.values(), self.opened.budget, self.reference)
        return self._board

    def ratios_to_a(self) -> dict[int, float]:
        """Throughput of each trial over that of A, by id; of those that were measured, if A was."""
        board, measured = self.board, self.measured(self.a)
        reference = board.row(measured.id) if board and measured else None
        if board is None or reference is None or reference.throughput is None:
            return {}
        base = reference.throughput.value
        return {row.trial.id: row.throughput.value / base for row in board.rows if row.throughput is not None}

    def measured(self, settings: TrainSettings | None) -> Trial | None:
        """The newest trial of these settings that is COMPLETE."""
        found = [t for t in self.trials.values() if t.settings == settings and t.state is TrialState.COMPLETE]
        return max(found, key=lambda trial: trial.id, default=None)

    def say(self, text: str, is_error: bool = False) -> None:
        """Add a message."""
        self.messages.append(Message(text, is_error))

    def crown(self) -> None:
        """B becomes A."""
        self.a = self.b

    def take(self, event: EngineEvent) -> None:
        """Take in one event."""
        if isinstance(event, StudyOpened):
            self._open(event)
        elif isinstance(event, StudyTrials):
            self._load(event)
        elif isinstance(event, SearchPlanned):
            self.plan, self.reference, self._board = event, event.reference, None
            self.say(_planned(event))
        elif isinstance(event, TrialStarted):
            self._start(event)
        elif isinstance(event, TrialProgress):
            self.progress = event
            self.started = self._starts.get(event.trial_id, self.started)
        elif isinstance(event, TrialFinished):
            self._finish(event)
        elif isinstance(event, PairFinished | Compared):
            self._compare(event)
        elif isinstance(event, Confirming):
            self.say(f"trial {event.trial_id} is the best so far; it is launched again to confirm it")
        elif isinstance(event, Dropped):
            self.say(dropped_text(event))
        elif isinstance(event, RoundFinished):
            self.say(round_text(event))
        elif isinstance(event, RaceFinished):
            self.say(finished_text(event))
        elif isinstance(event, SearchFinished):
            if event.stopped_because:
                self.say(f"the search stopped: {event.stopped_because}")
        elif isinstance(event, Problem):
            self.say(event.text, is_error=True)
        elif isinstance(event, TaskStarted):
            self.task = event.title
        elif isinstance(event, TaskEnded):
            self._end(event)
        elif isinstance(event, Exported):
            self.exported = event.path
            self.say(f"trial {event.trial_id} is written to {event.path}; check it with gputune-tui verify")
            for remark in event.remarks:
                self.say(remark)
        elif isinstance(event, QueueChanged):
            self.waiting = event.waiting

    def _open(self, event: StudyOpened) -> None:
        before, self.opened = self.opened, event
        self.trials, self._board, self.reference = {}, None, None
        # The same study again, as after the engine's end: what was chosen by hand is still meant.
        if before is None or (before.path, before.identity) != (event.path, event.identity):
            self.a = self.b = None
        self.plan = self.comparison = self.remaining_s = None
        for note in event.notes:
            self.say(note)

    def _load(self, event: StudyTrials) -> None:
        if event.first:
            self.trials = {}
        self.trials.update((trial.id, trial) for trial in event.trials)
        self._board = None
        if self.reference is None:
            self.reference = event.baseline
        self.a, self.b = self.a or event.baseline, self.b or event.baseline

    def _start(self, event: TrialStarted) -> None:
        self.started, self.progress = event, None
        self._starts[event.trial_id] = event
        if event.arm:
            if self.comparison is None or self.comparison.over:
                self.comparison = Comparison(event.settings, event.settings)
            setattr(self.comparison, event.arm.lower(), event.settings)

    def _finish(self, event: TrialFinished) -> None:
        self.trials[event.trial.id] = event.trial
        self._starts.pop(event.trial.id, None)
        self.remaining_s, self.started, self.progress, self._board = event.remaining_s, None, None, None
        failure = event.trial.failure
        if failure is not None:
            self.say(f"trial {event.trial.id} ended: {failure.reason.value}: {failure.message}", is_error=True)
            return
        row = self.board.row(event.trial.id) if self.board else None
        if row is not None:
            peak = row.memory.device_peak_bytes if row.memory else None
            self.say(f"trial {event.trial.id}: {speed_text(row.throughput)} samples/s, peak {bytes_text(peak)}")

    def _compare(self, event: PairFinished | Compared) -> None:
        if isinstance(event, Compared):
            for trial in (event.a, event.b):
                self.trials[trial.id] = trial
            self._board = None
            self.comparison = Comparison(
                event.a.settings,
                event.b.settings,
                over=True,
                margin_fraction=event.margin_fraction,
                elapsed_s=event.elapsed_s,
            )
        found = self.comparison
        if found is None:
            return
        found.pairs, found.ratio, found.verdict = event.pairs, event.ratio, event.verdict
        found.low, found.high = event.low, event.high
        if found.over:
            self.say(comparison_text(found))

    def _end(self, event: TaskEnded) -> None:
        self.task = self.started = self.progress = self.remaining_s = None
        self._starts.clear()
        if self.comparison is not None and not self.comparison.over:
            self.comparison = None
        if event.error is not None:
            self.say(event.error, is_error=True)
        elif event.cancelled:
            self.say("stopped; results so far are kept")
        if event.title == "engine":
            self.waiting = ()


def comparison_text(found: Comparison) -> str:
    """The verdict in words, or how far it has come."""
    pairs = f"{found.pairs} {'pair' if found.pairs == 1 else 'pairs'}"
    if found.ratio is None or found.low is None or found.high is None:
        return "A against B: undecided, nothing was measured" if found.over else f"A against B: {pairs}"
    if not found.over:
        return f"A against B: {ratio_with_interval_text(found.ratio, found.low, found.high)}, {pairs}"
    ratio = Ratio(found.ratio, found.low, found.high, 0.95)
    return f"{verdict_text(found.verdict, ratio, found.margin_fraction, found.elapsed_s)}, {pairs}"


def _planned(event: SearchPlanned) -> str:
    left = event.cells - event.already_finished
    default = " (the default space)" if event.is_default else ""
    finished = f", {event.already_finished} of them measured before" if event.already_finished else ""
    return f"space {event.space}{default}: {event.cells} settings{finished}, {left} to run"


def remaining_text(seconds: float | None) -> str:
    """ "1:12 left"; nothing where it is unknown."""
    return "" if seconds is None else f"{seconds_text(seconds)} left"
