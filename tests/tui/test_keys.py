"""The table of keys, and what each key does, asks or refuses."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from textual.screen import Screen

from gputune_tui.domain.conditions import Neighbour
from gputune_tui.domain.script import ScriptFacts
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import FailureReason
from gputune_tui.engine.commands import Compare, RunSettings, Search
from gputune_tui.engine.events import (
    DeviceInUse,
    Problem,
    QueueChanged,
    StudyOpened,
    StudyTrials,
    TaskEnded,
    TaskStarted,
    TrialFinished,
    TrialStarted,
)
from gputune_tui.engine.requests import Cancel, Do, Share
from gputune_tui.tui.actions import ACTIONS, bindings, key_text
from gputune_tui.tui.glyphs import ASCII, UNICODE
from gputune_tui.tui.help_text import help_lines
from gputune_tui.tui.screens.main_screen import MainScreen
from tests.ranking.make import BUDGET, complete, failed, identity, launch
from tests.tui.scripted import BASELINE, Driven, drive, make_app

B = replace(BASELINE, precision="bf16")
NEEDS_STUDY = ("r", "a", "u", "c")


def rated(trial_id: int, rate: float, settings: TrainSettings | None = None) -> TrialFinished:
    """A trial that ended well with about this throughput."""
    return TrialFinished(complete(trial_id, launch(rate, rate * 1.01), settings=settings), 1, None, None)


def works(it: Driven) -> list[str]:
    """Those of the keys that need something to work on which are not dim."""
    return sorted(key for key in (*NEEDS_STUDY, "s", "e") if it.main.active_bindings[key].enabled)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_an_action_is_carried_out_explained_and_in_the_palette(action: object) -> None:
    (found,) = [a for a in ACTIONS if a is action]
    assert callable(getattr(MainScreen, f"action_{found.name.partition('(')[0]}"))
    for glyphs in (UNICODE, ASCII):
        (line,) = [line for line in help_lines(glyphs) if line[-1][0] == found.help]
        for key in found.keys:
            assert key_text(key) in line[0][0].split()
    app = make_app()[0]
    assert [c.help for c in app.get_system_commands(Screen()) if c.help == found.help] == [found.help]


def test_no_key_does_two_things() -> None:
    keys = Counter(key for action in ACTIONS for key in action.keys)
    assert [key for key, count in keys.items() if count > 1] == []
    assert len(bindings()) == len(ACTIONS) == len({action.name for action in ACTIONS})


def test_the_keys_of_the_design() -> None:
    does = {key: action.name for action in ACTIONS for key in action.keys}
    for key, name in {
        "question_mark": "help", "f1": "help", "1": "show_monitor", "f3": "show_monitor", "2": "show_tune",
        "f4": "show_tune", "q": "quit", "f10": "quit", "z": "pause", "r": "run_b", "a": "compare", "u": "search",
        "c": "crown", "e": "export", "k": "move(-1)", "j": "move(1)", "left": "step(-1)", "right": "step(1)",
    }.items():  # fmt: skip
        assert does[key] == name


def test_without_a_study_nothing_is_asked_and_the_keys_are_dim() -> None:
    async def steps(it: Driven) -> None:
        # The first thing to do is to choose a workload; it can be left for later.
        assert "Workload" in it.text()
        await it.press("escape")
        assert not it.in_dialog()
        assert works(it) == []
        assert all(it.main.active_bindings[key].enabled for key in ("w", "question_mark", "q", "m", "z"))
        await it.press(*NEEDS_STUDY, "s", "e", "b", "right", "left", "backspace", "enter", "up", "down", "tab", "enter")
        assert it.asked() == []
        assert not it.in_dialog()
        assert "w chooses a workload" in it.text()
        await it.press("w")
        assert it.in_dialog()

    drive(steps, config=None)


def test_r_asks_before_it_measures_again() -> None:
    async def steps(it: Driven) -> None:
        assert works(it) == ["a", "c", "e", "r", "u"]
        await it.press("r")
        assert it.asked() == []
        assert it.tune.board.cursor == 1
        assert "trial 1 has measured B" in it.last_said()
        assert "trial 1 has measured B" in it.text()
        await it.press("r")
        assert it.asked() == [Do(RunSettings(BASELINE))]
        # The question is asked anew each time, and forgotten with another B.
        await it.press("r")
        assert it.asked() == []
        await it.press("right", "left", "r")
        assert it.asked() == []
        await it.press("r")
        assert it.asked() == [Do(RunSettings(BASELINE))]
        # What failed or was never run is not asked about.
        await it.press("right", "r")
        assert it.asked() == [Do(RunSettings(B))]

    drive(steps, trials=[complete(1, launch(100.0), settings=BASELINE), failed(2, FailureReason.KILLED, settings=B)])


def test_what_is_asked_while_something_runs_waits_and_s_ends_it() -> None:
    async def steps(it: Driven) -> None:
        await it.say(TaskStarted("trial"), TrialStarted(1, BASELINE, 1, 1))
        await it.press("right", "r", "a", "u")
        assert it.asked() == [Do(RunSettings(B)), Do(Compare(BASELINE.as_dict(), B.as_dict())), Do(Search())]
        assert "waits until what runs is over" in it.last_said()
        await it.say(QueueChanged(("trial", "a/b", "search")))
        assert "waiting: trial, a/b, search" in it.text()
        assert "s" in works(it)
        await it.press("s")
        assert it.asked() == [Cancel()]
        await it.say(QueueChanged(()), TaskEnded("trial", None, 130, cancelled=True))
        await it.press("s")
        assert it.asked() == []
        assert works(it) == ["a", "c", "r", "u"]

    drive(steps)


def test_the_selection_stays_on_its_trial() -> None:
    async def steps(it: Driven) -> None:
        await it.say(rated(1, 100.0), rated(2, 50.0))
        await it.press("tab", "down")
        board = it.tune.board
        assert board.has_focus
        assert board.cursor == 2
        for number in range(3, 26):
            await it.say(rated(number, 60.0 + 3 * number, TrainSettings(num_workers=number)))
            assert board.cursor == 2
            shown = it.panel("board").splitlines()
            assert board._cursor_line is not None
            assert "  50." in shown[board._cursor_line] or " 50.2 " in shown[board._cursor_line]
        order = [row.key for row in board.rows]
        assert order[-1] == 2
        # To the other end and back, by keys.
        await it.press("pageup", "pageup", "pageup", "pageup", "up")
        assert board.cursor == order[0]
        assert "▸" not in it.panel("board")
        await it.press("pagedown", "k", "j", "down")
        assert board.cursor == order[11]
        # B takes what the row has.
        await it.press("b")
        assert it.state.b == it.state.trials[order[11]].settings
        await it.press("backspace")
        assert it.state.b == BASELINE
        assert it.asked() == []

    drive(steps)


def test_a_value_is_typed() -> None:
    async def steps(it: Driven) -> None:
        await it.press("down", "enter")
        assert "micro_batch_size" in it.text()
        # The keys of the screen below are letters here.
        await it.press("q", "enter")
        assert "micro_batch_size='q' is not possible" in it.last_said()
        for typed, batch in ((" 8 ", (8, 2)), ("3", (8, 2))):
            await it.press("enter")
            await it.type(typed)
            await it.press("enter")
            assert it.state.b is not None
            assert (it.state.b.micro_batch_size, it.state.b.accumulation_steps) == batch
        assert it.last_said() == "3 does not divide the global batch of 16"
        # What makes no difference is said.
        await it.press("down", "down", "down", "enter")
        assert it.tune.knobs.cursor == "prefetch_factor"
        await it.type("4")
        await it.press("enter")
        assert it.last_said() == "prefetch_factor=4 makes no difference with the other values of B"

    drive(steps)


def test_dialogs_are_read_scrolled_and_closed() -> None:
    async def steps(it: Driven) -> None:
        await it.press("m")
        assert "nothing was said yet" in it.text()
        await it.press("m")
        assert not it.in_dialog()
        await it.say(*[Problem(f"problem {number}") for number in range(40)])
        await it.press("m")
        await it.until(lambda: "problem 39" in it.text())
        assert "problem 3 " not in it.text()
        await it.press(*["pageup"] * 4)
        assert "problem 0 " in it.text()
        await it.press("q")
        assert not it.in_dialog()
        await it.press("question_mark")
        assert "Keys" in it.text()
        assert "asked about." in it.text()
        await it.press(*["pagedown"] * 5)
        assert "end of the row" in it.text()
        assert "N/A" in it.text()
        assert it.asked() == []
        await it.press("escape", "tab", "enter")
        await it.until(lambda: "Trial 1" in it.text() and "samples/s (" in it.text())
        await it.press("escape", "down", "enter")
        await it.until(lambda: "CRASH: what happened" in it.text() and "log: /logs/trial" in it.text())
        await it.press("enter")
        assert not it.in_dialog()
        assert it.app.focused is it.tune.board
        # What failed is not exported.
        assert it.tune.board.cursor == 2
        assert works(it) == ["a", "c", "r", "u"]
        await it.press("e")
        assert not it.in_dialog()
        await it.press("up")
        assert works(it) == ["a", "c", "e", "r", "u"]
        await it.press("e")
        assert "Escape does not." in it.text()

    drive(steps, trials=[complete(1, launch(100.0)), failed(2, FailureReason.CRASH)])


def test_the_palette_does_what_the_key_does() -> None:
    async def steps(it: Driven) -> None:
        await it.press("right", "ctrl+p")
        assert it.in_dialog()
        await it.press(*"crown")
        await it.until(lambda: "Make B the new A" in it.text())
        await it.press("enter")
        await it.until(lambda: not it.in_dialog())
        await it.until(lambda: it.state.a == B)
        await it.press("q")
        await it.until(lambda: it.app._exit)
        assert it.app.return_value == 0

    drive(steps)


def test_what_a_script_does_by_itself_is_shown_before_its_first_trial() -> None:
    async def steps(it: Driven) -> None:
        facts = ScriptFacts(
            32, world_size=2, model="Net", optimizer="SGD", refused={"compile": "it compiles by itself"}
        )
        script = replace(identity(), script=facts)
        it.engine.say(StudyOpened("/s", script, 1, BUDGET, 0), StudyTrials((), BASELINE))
        await it.until(it.in_dialog)
        for words in ("The script as it is", "Net", "micro_batch_size 32", "2 ranks", "it compiles by itself"):
            assert words in it.text()
        await it.press("escape")
        assert not it.in_dialog()
        it.engine.say(StudyOpened("/s", script, 1, BUDGET, 3), StudyTrials((), BASELINE))
        await it.until(lambda: it.state.opened is not None and it.state.opened.finished_trials == 3)
        assert not it.in_dialog()

    drive(steps)


def in_use(it: Driven) -> None:
    other = Neighbour(4711, "alice", 2 << 30, "python train.py")
    it.engine.say(
        TaskStarted("trial"), DeviceInUse("cuda:0", (other,)), TaskEnded("trial", "somebody else computes on cuda:0", 5)
    )


@pytest.mark.parametrize(("key", "asked"), [("y", True), ("escape", False), ("enter", False), ("n", False)])
def test_measuring_beside_somebody_is_asked_with_pid_user_and_memory(key: str, asked: bool) -> None:
    async def steps(it: Driven) -> None:
        await it.press("right", "r")
        command = it.asked()
        assert len(command) == 1
        in_use(it)
        await it.until(it.in_dialog)
        for word in ("cuda:0", "pid 4711", "alice", "2.00 GiB", "python train.py"):
            assert word in it.text()
        await it.press(key)
        assert not it.in_dialog()
        assert it.asked() == ([Share(), *command] if asked else [])

    drive(steps, trials=[complete(1, launch(100.0), settings=BASELINE)])
