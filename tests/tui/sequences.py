"""Events in any order and with any content that the wire lets through."""

from __future__ import annotations

from hypothesis import strategies as st

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import (
    Block,
    Failure,
    FailureReason,
    Launch,
    MemoryPeaks,
    StepBreakdown,
    Trial,
    TrialState,
)
from gputune_tui.engine.events import (
    Compared,
    Contender,
    Dropped,
    EngineEvent,
    Exported,
    PairFinished,
    Previewed,
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
from gputune_tui.tui.tune_lines import PHASES
from tests.ranking.make import BUDGET, HEALTHY, identity
from tests.tui.hostile import texts
from tests.tui.scripted import opened

TITLES = st.sampled_from(["open", "search", "trial", "a/b", "engine", "[/]"])
SETTINGS = st.builds(
    TrainSettings,
    st.sampled_from(["fp32", "bf16"]),
    st.sampled_from([1, 16]),
    st.sampled_from([16, 1]),
    num_workers=st.sampled_from([0, 2, 4]),
)
counts = st.integers(0, 1 << 40)
amounts = st.floats(0, 1e300)
ratios = st.none() | st.floats() | st.floats(0.5, 2.0)
seconds = st.floats(1e-9, 1e12)
peaks = st.builds(MemoryPeaks, *[st.none() | counts] * 5)
breakdowns = st.builds(StepBreakdown, *[st.none() | seconds] * 7, seconds)
launches = st.builds(
    Launch,
    st.lists(st.builds(Block, counts, st.integers(0, 9), seconds), max_size=4).map(tuple),
    st.lists(seconds, max_size=4).map(tuple),
    st.just(3),
    peaks,
    st.none() | breakdowns,
    st.none() | st.just(HEALTHY),
    st.lists(texts, max_size=2).map(tuple),
)
failures = st.builds(Failure, st.sampled_from(FailureReason), texts, st.none() | texts, st.booleans())
trials = st.builds(
    Trial,
    st.integers(0, 5),
    SETTINGS,
    st.sampled_from(TrialState),
    st.none() | failures,
    st.lists(launches, max_size=2).map(tuple),
    st.none() | peaks,
    st.none() | counts,
)
budgets = st.just(BUDGET) | st.builds(MemoryBudget, st.integers(0, 1 << 50), st.none() | counts)
contenders = st.builds(
    Contender, counts, st.sampled_from(["tied", "undecided", "slower", "set aside"]), ratios, ratios, ratios
)
events: st.SearchStrategy[EngineEvent] = st.one_of(
    st.builds(
        StudyOpened, texts, st.just(identity()), st.just(1), budgets, counts, st.lists(texts, max_size=2).map(tuple)
    ),
    st.builds(StudyTrials, st.lists(trials, max_size=4).map(tuple), SETTINGS, st.booleans(), st.booleans()),
    st.builds(SearchPlanned, texts, st.booleans(), counts, counts, counts, counts, SETTINGS),
    st.builds(TrialStarted, st.integers(0, 5), SETTINGS, counts, st.none() | counts, st.sampled_from(["", "A", "B"])),
    st.builds(TrialProgress, st.integers(0, 5), st.sampled_from([*PHASES, "[new]"]), texts, counts, counts, ratios),
    st.builds(TrialFinished, trials, counts, st.none() | counts, st.none() | amounts),
    st.builds(PairFinished, counts, ratios, ratios, ratios, st.sampled_from(["faster", "slower", "tied", "undecided"])),
    st.builds(SearchFinished, st.none() | texts),
    st.builds(Dropped, contenders, st.none() | counts),
    st.builds(RoundFinished, counts, counts, st.lists(contenders, max_size=3).map(tuple)),
    st.builds(RaceFinished, counts, st.lists(contenders, max_size=3).map(tuple), st.just(0.03), st.floats(0, 1e6)),
    st.builds(
        Compared,
        trials,
        trials,
        ratios,
        ratios,
        ratios,
        st.just(0.95),
        st.sampled_from(["faster", "slower", "tied", "undecided"]),
        counts,
        counts,
        st.lists(texts, max_size=2).map(tuple),
    ),
    st.builds(Problem, texts),
    st.builds(TaskStarted, TITLES),
    st.builds(TaskEnded, TITLES, st.none() | texts, st.just(1), st.booleans()),
    st.builds(Exported, texts, counts, st.lists(texts, max_size=2).map(tuple)),
    st.builds(Previewed, st.none() | counts, texts, texts, st.none() | texts),
    st.builds(QueueChanged, st.lists(TITLES, max_size=3).map(tuple)),
)
sequences = st.tuples(st.sampled_from([(), opened()]), st.lists(events, max_size=12)).map(
    lambda parts: [*parts[0], *parts[1]]
)
