"""The tuning pane's memory: what each event leaves behind, and that no order of events breaks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import FailureReason, TrialState
from gputune_tui.engine.events import (
    Compared,
    EngineEvent,
    Exported,
    PairFinished,
    Problem,
    QueueChanged,
    SearchFinished,
    SearchPlanned,
    StudyTrials,
    TaskEnded,
    TaskStarted,
    TrialFinished,
    TrialProgress,
    TrialStarted,
)
from gputune_tui.tui import tune_lines
from gputune_tui.tui.glyphs import ASCII, UNICODE, Glyphs
from gputune_tui.tui.tune_state import KEPT_MESSAGES, TuneState, comparison_text, remaining_text
from tests.ranking.make import MIB, complete, failed, launch
from tests.tui.scripted import BASELINE, opened
from tests.tui.sequences import sequences

B = replace(BASELINE, precision="bf16")
A_TRIAL = complete(1, launch(100.0, 101.0, 102.0), settings=BASELINE)
B_TRIAL = complete(2, launch(150.0, 151.0, 152.0), settings=B)


def state_after(*events: EngineEvent) -> TuneState:
    state = TuneState()
    for event in events:
        state.take(event)
    return state


def said(state: TuneState) -> list[str]:
    return [message.text for message in state.messages]


def nothing_of(*values: object) -> bool:
    return all(value is None for value in values)


def check(state: TuneState, event: EngineEvent) -> None:
    """What holds whatever came before."""
    assert (state.board is None) == (state.opened is None)
    assert (state.ground is None) == (state.opened is None)
    if state.board is not None:
        assert {row.trial.id for row in state.board.rows} == set(state.trials)
    assert (state.a is None) == (state.b is None)
    assert len(state.messages) <= KEPT_MESSAGES
    assert state.is_timed == (state.progress is not None and state.progress.phase == "measure")
    for trial_id, trial in state.trials.items():
        assert trial_id == trial.id
        ratio = state.ratios_to_a().get(trial_id)
        assert ratio is None or ratio > 0
    newest = state.measured(state.a)
    assert newest is None or (newest.settings == state.a and newest.state is TrialState.COMPLETE)
    if isinstance(event, TaskEnded):
        assert nothing_of(state.task, state.started, state.progress, state.remaining_s)
        assert state.comparison is None or state.comparison.over
    if isinstance(event, TrialFinished | Compared):
        finished = [event.trial] if isinstance(event, TrialFinished) else [event.b]
        assert all(state.trials[trial.id] == trial for trial in finished)
    if isinstance(event, Problem):
        assert state.messages[-1].is_error


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(events=sequences, width=st.integers(1, 250), glyphs=st.sampled_from([UNICODE, ASCII]))
def test_no_order_of_events_breaks_it(events: list[EngineEvent], width: int, glyphs: Glyphs) -> None:
    state = TuneState()
    for event in events:
        state.take(event)
        check(state, event)
    tune_lines.setup_title(state)
    tune_lines.board_title(state)
    tune_lines.running_title(state)
    tune_lines.knob_header(width)
    tune_lines.knob_rows(state, width, glyphs)
    tune_lines.board_header(state, width)
    rows = tune_lines.board_rows(state, width, glyphs)
    assert {row.key for row in rows} == (set(state.trials) if state.opened else set())
    assert len(tune_lines.running_lines(state, width, glyphs)) <= 4
    for row in state.board.rows if state.board else ():
        tune_lines.trial_facts(row, state)


def test_an_opened_study_gives_a_and_b_the_baseline() -> None:
    state = state_after(*opened([A_TRIAL, B_TRIAL], notes=("a new generation: the file changed",)))
    assert state.a == state.b == state.reference == BASELINE
    assert set(state.trials) == {1, 2}
    assert said(state) == ["a new generation: the file changed"]
    assert state.task is None


def test_a_comparison_that_measured_nothing_says_so() -> None:
    state = state_after(*opened(), TaskStarted("a/b"), TrialStarted(1, BASELINE, 1, None, "A"))
    state.take(Compared(A_TRIAL, B_TRIAL, None, None, None, 0.95, "undecided", 0, 0))
    assert said(state)[-1] == "A against B: undecided, nothing was measured"


def test_the_line_of_what_runs_is_that_of_the_arm_whose_turn_it_is() -> None:
    state = state_after(*opened(), TaskStarted("a/b"), TrialStarted(1, BASELINE, 1, None, "A"))
    state.take(TrialStarted(2, B, 2, None, "B"))
    for trial_id, arm in ((1, "A"), (2, "B"), (1, "A")):
        state.take(TrialProgress(trial_id, "measure"))
        assert state.started is not None
        assert state.started.arm == arm


def test_trials_in_several_parts_replace_what_was_there() -> None:
    state = state_after(*opened([failed(7, FailureReason.CRASH)]))
    state.a = state.b = B
    state.take(StudyTrials((A_TRIAL,), BASELINE, first=True, last=False))
    state.take(StudyTrials((B_TRIAL,), BASELINE, first=False, last=True))
    assert set(state.trials) == {1, 2}
    assert state.a == state.b == B


def test_another_study_forgets_the_first() -> None:
    state = state_after(*opened([A_TRIAL]), TrialStarted(3, B, 1, 1, "B"), PairFinished(1, 1.0, 0.9, 1.1, "tied"))
    for event in opened():
        state.take(event)
    assert state.trials == {}
    assert nothing_of(state.comparison, state.plan)


def test_a_trial_from_start_to_end() -> None:
    state = state_after(*opened(), TaskStarted("trial"), TrialStarted(2, B, 1, 3), TrialProgress(2, "warm_up"))
    timed = [state.is_timed]
    for event in (TrialProgress(2, "measure", "", 1, 12, 150.0), TrialFinished(B_TRIAL, 1, 3, 72.0)):
        state.take(event)
        timed.append(state.is_timed)
    assert timed == [False, True, False]
    assert nothing_of(state.started, state.progress)
    assert remaining_text(state.remaining_s) == "1:12 left"
    assert said(state)[-1].startswith("trial 2: 151 ±")
    assert said(state)[-1].endswith("samples/s, peak 100 MiB")
    assert state.board is not None
    assert state.board.best is not None


def test_a_failure_is_said_in_its_words() -> None:
    state = state_after(*opened(), TrialFinished(failed(3, FailureReason.DEVICE_OOM), 1, None, None))
    assert state.messages[-1].text == "trial 3 ended: DEVICE_OOM: what happened"
    assert state.messages[-1].is_error


def test_a_cancelled_task_ends_all_that_ran() -> None:
    state = state_after(
        *opened(),
        TaskStarted("a/b"),
        TrialStarted(1, BASELINE, 1, None, "A"),
        PairFinished(1, 1.1, 0.9, 1.2, "undecided"),
        TrialProgress(1, "measure"),
    )
    assert state.comparison is not None
    state.take(TaskEnded("a/b", None, 130, cancelled=True))
    assert nothing_of(state.task, state.started, state.progress, state.comparison)
    assert said(state)[-1] == "stopped; results so far are kept"


def test_the_end_of_the_engine_is_said_once_and_empties_the_queue() -> None:
    state = state_after(*opened([A_TRIAL]), TaskStarted("trial"), QueueChanged(("a/b",)), TrialStarted(2, B, 1, 1))
    state.take(TaskEnded("engine", "the engine process ended (signal 9, SIGKILL)", 1))
    assert said(state) == ["the engine process ended (signal 9, SIGKILL)"]
    assert state.waiting == ()
    assert nothing_of(state.task, state.started)
    assert set(state.trials) == {1}


def test_a_comparison_grows_pair_by_pair_to_its_verdict() -> None:
    state = state_after(*opened(), TaskStarted("a/b"), TrialStarted(1, BASELINE, 1, None, "A"))
    state.take(TrialStarted(2, B, 2, None, "B"))
    found = state.comparison
    assert found is not None
    assert (found.a, found.b) == (BASELINE, B)
    assert comparison_text(found) == "A against B: 0 pairs"
    state.take(PairFinished(1, 1.5, 1.2, 1.8, "undecided"))
    assert comparison_text(found) == "A against B: 1.50x (1.20 to 1.80), 1 pair"
    state.take(Compared(A_TRIAL, B_TRIAL, 1.0, 0.99, 1.01, 0.95, "tied", 6, 3))
    assert state.comparison is not None
    assert comparison_text(state.comparison) == said(state)[-1] == "tied within 3 % (0.99 to 1.01), 3 pairs"
    assert set(state.trials) == {1, 2}
    # The next one begins anew.
    state.take(TrialStarted(3, B, 1, None, "A"))
    assert state.comparison is not None
    assert not state.comparison.over
    assert state.comparison.pairs == 0


def test_ratios_are_to_the_newest_measurement_of_a() -> None:
    faster = complete(5, launch(200.0, 200.0), settings=BASELINE)
    state = state_after(*opened([A_TRIAL, B_TRIAL]))
    assert state.ratios_to_a().get(1) == 1.0
    assert state.ratios_to_a().get(2) == pytest.approx(151.0 / 101.0)
    state.take(TrialFinished(faster, 1, 1, None))
    assert state.ratios_to_a().get(2) == pytest.approx(151.0 / 200.0)
    assert state.ratios_to_a().get(99) is None
    state.b = B
    state.crown()
    assert state.ratios_to_a().get(2) == 1.0


def test_the_budget_decides_what_is_ranked() -> None:
    state = state_after(*opened([A_TRIAL], budget=MemoryBudget(50 * MIB)))
    assert state.board is not None
    assert state.board.best is None
    assert "over budget" in "".join(text for text, _ in tune_lines.board_rows(state, 120, UNICODE)[0].line)


def test_what_is_only_told_is_told() -> None:
    state = state_after(
        *opened(),
        SearchPlanned("precision=fp32,bf16", True, 4, 1, 0, 0, B),
        SearchFinished("10m are over"),
        Problem("the disk is full"),
        Exported("/tmp/g.yaml", 2),
    )
    assert state.reference == B
    assert state.exported == "/tmp/g.yaml"
    assert said(state) == [
        "space precision=fp32,bf16 (the default space): 4 settings, 1 of them measured before, 3 to run",
        "the search stopped: 10m are over",
        "the disk is full",
        "trial 2 is written to /tmp/g.yaml; check it with gputune-tui verify",
    ]


def test_old_messages_make_room() -> None:
    state = state_after(*[Problem(f"problem {number}") for number in range(KEPT_MESSAGES + 5)])
    assert len(state.messages) == KEPT_MESSAGES
    assert said(state)[-1] == f"problem {KEPT_MESSAGES + 4}"
