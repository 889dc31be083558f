"""The engine process ends, or cannot be started: one sentence, and the next key goes on where it was."""

from __future__ import annotations

from dataclasses import replace

from gputune_tui.engine.commands import RunSettings
from gputune_tui.engine.events import TaskStarted, TrialProgress, TrialStarted
from gputune_tui.engine.requests import Do, Open
from gputune_tui.errors import EnvironmentProblem
from tests.ranking.make import complete, launch
from tests.tui.scripted import BASELINE, CONFIG, Driven, drive, opened

B = replace(BASELINE, precision="bf16")
HOW = "the engine process ended (signal 9, SIGKILL); trials so far are kept"
NONE = "cannot start the engine process: Too many open files; see ulimit -u and -n"
TRIALS = [complete(1, launch(100.0), settings=BASELINE)]


def cannot_start() -> None:
    raise EnvironmentProblem(NONE)


def test_the_next_r_starts_it_anew_with_the_study_that_was_open() -> None:
    async def steps(it: Driven) -> None:
        await it.press("right")
        await it.say(TaskStarted("trial"), TrialStarted(2, B, 1, 1), TrialProgress(2, "measure", "", 1, 9, 5.0))
        assert it.is_quiet()
        it.engine.end(HOW)
        await it.tick()
        await it.settle()
        assert not it.engine.alive
        assert [message.text for message in it.state.messages] == [HOW]
        assert HOW[:50] in it.text()
        assert it.state.task is None
        assert not it.is_quiet()
        assert not it.main.active_bindings["s"].enabled
        # What is known stays on the screen, and every key works.
        await it.tick()
        await it.press("m", "escape", "tab", "tab")
        assert len(it.state.messages) == 1
        assert [row.key for row in it.tune.board.rows] == [1]

        await it.press("r")
        assert it.engine.starts == 2
        assert it.asked() == [Open(CONFIG), Do(RunSettings(B))]
        await it.say(*opened(TRIALS), TaskStarted("trial"), TrialStarted(2, B, 1, 1))
        assert it.state.b == B
        assert "bf16" in it.panel("running")

        # It ends again, and this time there is no other.
        it.engine.end(HOW)
        await it.until(lambda: not it.engine.alive)
        it.engine.start = cannot_start  # type: ignore[method-assign]
        await it.press("right", "r")
        await it.tick()
        assert it.last_said() == NONE
        await it.press("u")
        await it.tick()
        assert it.app.is_running
        assert it.asked() == []

    drive(steps, trials=TRIALS)
