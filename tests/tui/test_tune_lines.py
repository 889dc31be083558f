"""The tuning pane as lines: columns that line up, settings in few words, and verdicts that can be read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

import gputune_tui
from gputune_tui.domain.choices import knobs_for
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import FailureReason, StepBreakdown
from gputune_tui.engine.events import Compared, EngineEvent, QueueChanged, TaskStarted, TrialProgress, TrialStarted
from gputune_tui.tui import tune_lines
from gputune_tui.tui.glyphs import ASCII, UNICODE, Glyphs
from gputune_tui.tui.tune_state import TuneState
from gputune_tui.tui.widgets.lines import Line
from tests.ranking.make import MIB, complete, failed, launch
from tests.tui.scripted import BASELINE, opened
from tests.tui.sequences import SETTINGS

B = replace(BASELINE, precision="bf16", num_workers=2, prefetch_factor=2)
BREAKDOWN = StepBreakdown(0.02, None, 0.03, 0.05, 0.0, None, 0.0, 0.1)
GLYPHS = pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])


def a_full_state(*more: EngineEvent) -> TuneState:
    """A study with rows of every kind, and what `more` says."""
    state = TuneState()
    trials = [
        complete(1, launch(100.0, 101.0, 102.0, breakdown=BREAKDOWN), settings=BASELINE),
        complete(2, launch(150.0, 151.0, 152.0, notes=("BatchNorm sees micro-batch 8",)), settings=B),
        complete(3, launch(200.0, peak=4096 * MIB)),
        complete(4, launch(50.0, peak=None)),
        failed(5, FailureReason.DEVICE_OOM),
    ]
    for event in (*opened(trials), *more):
        state.take(event)
    state.b = B
    return state


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


@GLYPHS
def test_every_width(glyphs: Glyphs) -> None:
    state = a_full_state(
        QueueChanged(("trial", "a/b")),
        TaskStarted("search"),
        TrialStarted(6, B, 3, 9),
        TrialProgress(6, "measure", "", 1, 12, 150.0),
        Compared(complete(7, launch(1.0)), complete(8, launch(2.0)), 2.0, 1.5, 2.5, 0.95, "faster", 2, 6),
    )
    for width in range(1, 251):
        columns = sum(tune_lines.knob_widths(width)) + tune_lines.knob_widths(width)[1]
        assert cell_len(text(tune_lines.knob_header(width))) == columns
        assert all(cell_len(text(row.line)) == columns for row in tune_lines.knob_rows(state, width, glyphs))
        assert columns <= max(width, 24)
        assert len(tune_lines.board_rows(state, width, glyphs)) == 7
        tune_lines.board_header(state, width)
        for line in tune_lines.running_lines(state, width, glyphs)[1:]:
            assert cell_len(text(line)) <= max(width, 60)


@GLYPHS
@pytest.mark.parametrize("width", [70, 80, 89, 90, 120, 200])
def test_the_columns_of_the_leaderboard_stand_below_their_names(glyphs: Glyphs, width: int) -> None:
    state = a_full_state()
    header = text(tune_lines.board_header(state, width))
    rows = [text(row.line) for row in tune_lines.board_rows(state, width, glyphs)]
    at = header.index("settings")
    # The newest measurement of A is A; the others say what differs.
    assert [row[at:].split("  ")[0].rstrip() for row in rows][:2] == ["bf16 w2", "A"]


def test_a_row_says_what_it_is_worth_or_why_it_is_not() -> None:
    rows = {row.key: text(row.line) for row in tune_lines.board_rows(a_full_state(), 120, UNICODE)}
    assert rows[2].split()[0] == "1"
    assert "1.50x" in rows[2]
    assert "BatchNorm sees micro-batch 8" in rows[2]
    assert "1.00x" in rows[1]
    assert "20 %" in rows[1]
    assert "over budget" in rows[3]
    assert "memory peak unknown" in rows[4]
    assert "DEVICE_OOM: what happened" in rows[5]
    assert rows[5].split()[:3] == ["-", "N/A", "N/A"]


def test_titles_say_what_is_tuned_and_how_much_is_done() -> None:
    state = a_full_state(QueueChanged(("trial",)))
    assert tune_lines.setup_title(state) == ("Tune lm -D size=tiny on cpu (a CPU)", "budget 1.00 GiB · batch 16")
    assert tune_lines.board_title(state) == ("Leaderboard", "4 done · 1 failed · waiting: trial")
    assert tune_lines.setup_title(TuneState())[1] == "no workload yet: w chooses one"
    assert tune_lines.running_title(state) == ("Idle", "")


def test_the_running_line_says_what_can_be_done_and_what_is() -> None:
    def running(state: TuneState) -> str:
        return text(tune_lines.running_lines(state, 80, UNICODE)[0])

    assert running(TuneState()) == "w chooses a workload"
    assert running(a_full_state()).startswith("r runs B")
    assert running(a_full_state(TaskStarted("open"))) == "reading the workload"
    starting = a_full_state(TaskStarted("a/b"), TrialStarted(6, B, 1, None, "B"))
    assert running(starting).endswith("bf16 w2 (B): starting")
    starting.take(TrialProgress(6, "import", "torch"))
    assert running(starting).endswith("importing the workload (torch)")


@pytest.mark.parametrize("phase", tune_lines.PHASES)
def test_every_phase_has_words(phase: str) -> None:
    state = a_full_state(TaskStarted("trial"), TrialStarted(6, B, 1, 1), TrialProgress(6, phase))
    assert tune_lines.PHASES[phase] in text(tune_lines.running_lines(state, 80, UNICODE)[0])


def test_every_phase_that_a_trial_enters_is_known() -> None:
    sources = "".join(path.read_text() for path in (Path(gputune_tui.__file__).parent / "trainer").glob("*.py"))
    entered = set(re.findall(r"events\.phase\(\"(\w+)\"", sources))
    assert len(entered) > 5
    assert entered <= set(tune_lines.PHASES)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "A"),
        ({"precision": "bf16"}, "bf16"),
        ({"micro_batch_size": 8, "accumulation_steps": 2}, "8x2"),
        ({"num_workers": 2, "prefetch_factor": 2}, "w2"),
        ({"num_workers": 2, "prefetch_factor": 4}, "w2 prefetch 4"),
        ({"num_workers": 2, "prefetch_factor": 2, "persistent_workers": True}, "w2 persistent yes"),
        ({"activation_checkpointing": "every:2"}, "ckpt every:2"),
        ({"optimizer": "fused", "compile": "default"}, "opt fused compile default"),
        ({"channels_last": True, "pin_memory": True}, "channels last yes pin yes"),
        ({"flush_denormal": True}, "flush yes"),
        ({"python": "/opt/python"}, "python /opt/python"),
    ],
)
def test_short_text(changes: dict[str, object], words: str) -> None:
    changed = replace(BASELINE, **changes)  # type: ignore[arg-type]
    assert sorted(tune_lines.short_text(changed, BASELINE).split()) == sorted(words.split())


canonical = st.builds(replace, SETTINGS, prefetch_factor=st.sampled_from([2, 4]), persistent_workers=st.booleans()).map(
    lambda drawn: drawn.canonical("cpu")
)


@settings(max_examples=200)
@given(a=canonical, one=canonical, other=canonical)
def test_settings_that_differ_are_told_apart(a: TrainSettings, one: TrainSettings, other: TrainSettings) -> None:
    assert tune_lines.short_text(one, a)
    assert (tune_lines.short_text(one, a) == "A") == (one == a)
    assert (tune_lines.short_text(one, a) == tune_lines.short_text(other, a)) == (one == other)


def test_all_of_what_a_device_offers_has_a_label() -> None:
    state = a_full_state()
    assert state.ground is not None
    for kind in ("cpu", "cuda"):
        assert set(knobs_for(replace(state.ground, device_kind=kind))) <= set(tune_lines.KNOB_LABELS)


def test_a_workload_is_shown_as_it_is_typed() -> None:
    assert tune_lines.workload_text(WorkloadRef("./a.py:Class", {"x": "1", "y": "b"})) == "./a.py:Class -D x=1 -D y=b"
    assert tune_lines.workload_text(WorkloadRef("python train.py", {}, ("python", "train.py"))) == "python train.py"


def test_the_facts_of_a_trial() -> None:
    state = a_full_state()
    assert state.board is not None
    row = state.board.row(2)
    assert row is not None
    facts = "\n".join(tune_lines.trial_facts(row, state))
    for fact in ("trial 2: precision=bf16", "(130 to 176), 1 launch", "median 150 ms", "1.50x of A's throughput"):
        assert fact in facts
