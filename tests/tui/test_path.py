"""From picking a workload to an exported file, by keys alone: what is asked of the engine at each step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.engine.commands import Compare, RunSettings, Search, StudyConfig
from gputune_tui.engine.events import (
    Compared,
    Exported,
    PairFinished,
    SearchFinished,
    SearchPlanned,
    TaskEnded,
    TaskStarted,
    TrialFinished,
    TrialProgress,
    TrialStarted,
)
from gputune_tui.engine.requests import Cancel, Do, Export, Open, Preview
from tests.ranking.make import complete, launch
from tests.tui.scripted import BASELINE, WIDE, Driven, drive, opened

B = replace(BASELINE, precision="bf16")


def test_from_a_workload_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def steps(it: Driven) -> None:
        # The built-in workloads are listed; the arrows choose, Enter opens.
        await it.press("down", "up")
        await it.type("lm")
        await it.press("tab")
        await it.type("size=tiny")
        await it.press("enter")
        await it.until(lambda: not it.in_dialog())
        assert it.asked() == [Open(StudyConfig(WorkloadRef("lm", {"size": "tiny"})))]
        await it.say(*opened())
        assert "Tune lm -D size=tiny on cpu" in it.text()

        # A knob right, left, and right again; r asks for exactly B.
        assert it.tune.knobs.cursor == "precision"
        await it.press("right")
        assert it.state.b == B
        await it.press("left")
        assert it.state.b == BASELINE
        await it.press("right", "r")
        assert it.asked() == [Do(RunSettings(B))]

        # The trial runs and becomes a row.
        await it.say(TaskStarted("trial"), TrialStarted(1, B, 1, 1), TrialProgress(1, "warm_up"))
        assert "bf16: warming up" in it.panel("running")
        await it.say(TrialProgress(1, "measure", "", 3, 12, 151.0))
        assert "block 3 of 12" in it.panel("running")
        assert "151 samples/s" in it.panel("running")
        measured = complete(1, launch(150.0, 151.0, 152.0), settings=B)
        await it.say(TrialFinished(measured, 1, 1, None), TaskEnded("trial", None, 0))
        assert [row.key for row in it.tune.board.rows] == [1]
        assert "bf16" in it.panel("board")
        assert it.panel("running").startswith("r runs B")

        # A against B, to a verdict.
        await it.press("a")
        assert it.asked() == [Do(Compare(BASELINE.as_dict(), B.as_dict()))]
        a = complete(2, launch(100.0, 101.0, 102.0), settings=BASELINE)
        b = complete(3, launch(150.0, 151.0, 152.0), settings=B)
        await it.say(TaskStarted("a/b"), TrialStarted(2, BASELINE, 1, None, "A"), TrialStarted(3, B, 2, None, "B"))
        await it.say(PairFinished(2, 1.49, 1.40, 1.58, "undecided"))
        assert "A against B: 1.49x (1.40 to 1.58), 2 pairs" in it.panel("running")
        await it.say(Compared(a, b, 1.5, 1.45, 1.55, 0.95, "faster", 2, 6), TaskEnded("a/b", None, 0))
        assert "B is 1.50x A (1.45 to 1.55), 6 pairs" in it.panel("running")

        # B is crowned: the ratios are those to the new A.
        await it.press("c")
        assert it.state.a == it.state.b == B
        assert it.asked() == []

        # A search is started and stopped with the same key.
        await it.press("u")
        assert it.asked() == [Do(Search())]
        await it.say(TaskStarted("search"), SearchPlanned("precision=fp32,bf16", True, 2, 1, 0, 0, BASELINE))
        await it.say(TrialStarted(4, BASELINE, 1, 2))
        assert "trial 1 of 2" in it.rows()[0]
        await it.press("u")
        assert it.asked() == [Cancel()]
        await it.say(SearchFinished(None), TaskEnded("search", None, 130, cancelled=True))
        assert it.last_said() == "stopped; results so far are kept"

        # The selected trial is written.
        it.tune.board.select(3)
        await it.press("e")
        await it.type("found.yaml")
        await it.press("enter")
        assert it.asked() == [Preview(3, "yaml"), Export(3, "yaml", "found.yaml", False)]
        await it.say(Exported(str(tmp_path / "found.yaml"), 3))
        assert "trial 3 is written to" in it.last_said()

    drive(steps, WIDE, None)


def test_an_existing_file_is_asked_about_and_escape_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gputune.yaml").write_text("mine")
    (tmp_path / "other.yaml").symlink_to("nowhere")

    async def steps(it: Driven) -> None:
        await it.press("e", "enter")
        assert it.in_dialog()
        assert "gputune.yaml is already there" in it.text()
        # Another name that is taken is asked about anew; a free one is not.
        await it.type("other.yaml")
        await it.press("enter")
        assert "other.yaml is already there" in it.text()
        await it.press("escape")
        assert not it.in_dialog()
        assert it.asked() == [Preview(1, "yaml")]
        await it.press("e", "enter", "enter")
        assert it.asked() == [Preview(1, "yaml"), Export(1, "yaml", "gputune.yaml", True)]
        assert (tmp_path / "gputune.yaml").read_text() == "mine"

    drive(steps, trials=[complete(1, launch(100.0, 101.0))])
