"""Text is data: whatever is in a name, a message or a path appears as it is or replaced, and is never obeyed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.telemetry import NodeSnapshot
from gputune_tui.domain.trial import Failure, FailureReason
from gputune_tui.engine.commands import StudyConfig
from gputune_tui.engine.events import (
    EngineEvent,
    Exported,
    Previewed,
    Problem,
    QueueChanged,
    StudyOpened,
    StudyTrials,
    TaskEnded,
    TaskStarted,
    TrialFinished,
    TrialProgress,
    TrialStarted,
)
from gputune_tui.tui.screens.open_dialog import OpenDialog
from tests.ranking.make import BUDGET, complete, failed, identity, launch
from tests.telemetry.snapshots import HOST
from tests.tui import hostile, nodes
from tests.tui.scripted import BASELINE, WIDE, Driven, drive

LEAK = "[bold red on blue]LEAK[/][/]"


def check(it: Driven, why: str) -> None:
    """Each row fills the screen exactly, and nothing on it is a command, a link or a colour of somebody else."""
    strips = it.strips()
    assert len(strips) == it.app.size.height
    for strip in strips:
        assert strip.cell_length == it.app.size.width, why
        for text, style, _ in strip:
            assert hostile.harmless(text), (why, text)
            assert style is None or not any("click" in key for key in style.meta), why
            assert style is None or style.link is None, why
            if style is not None and "LEAK" in text:
                assert style.bgcolor is None or style.bgcolor.triplet != (0, 0, 255), why


def everything(text: str) -> list[EngineEvent]:
    """Events that hold the text wherever they can hold any."""
    whose = identity()
    environment = replace(whose.environment, device_name=text, host=text, driver=text)
    named = replace(whose, workload=WorkloadRef(text, {text: text}), environment=environment)
    failure = Failure(FailureReason.CRASH, text, text)
    settings = replace(BASELINE, python=text)
    return [
        StudyOpened(text, named, 1, replace(BUDGET, source=text), 2, (text, text)),
        StudyTrials((complete(1, launch(100.0, notes=(text,)), settings=settings),), BASELINE),
        TrialFinished(replace(failed(2, FailureReason.CRASH), failure=failure), 1, 1, None),
        Exported(text, 1, (text,)),
        Problem(text),
        QueueChanged((text,)),
        TaskEnded(text, text, 1),
        TaskStarted(text),
        TrialStarted(3, settings, 1, 1),
        TrialProgress(3, text, text, 1, 2, 3.0),
    ]


def hostile_node(text: str) -> NodeSnapshot:
    gpu = replace(nodes.gpus(1)[0], name=text, uuid=text, throttle=(text, text))
    row = nodes.process(text, text)
    host = replace(HOST, hostname=text)
    return replace(nodes.node(gpu, processes=(row, replace(row, is_trial=True)), host=host), driver=text, cuda=text)


def test_hostile_text_everywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    async def steps(it: Driven) -> None:
        for text in (*hostile.ALL, LEAK):
            why = ascii(text)[:40]
            await it.say(*everything(text))
            await it.tick(hostile_node(text))
            check(it, why)
        it.sampler.problem = hostile.ESCAPES
        await it.tick(nodes.node(problem=hostile.ESCAPES))
        check(it, "problem")
        it.sampler.problem = None
        # Brackets appear as they were written.
        await it.tick(hostile_node(LEAK))
        assert it.text().count(LEAK[:20]) > 3
        for size in ((20, 5), (80, 24)):
            await it.resize(*size)
            check(it, f"{size}")
        await it.press("m")
        check(it, "messages")
        assert LEAK in it.text()
        await it.press("escape", "tab", "enter")
        check(it, "detail")
        assert LEAK[:20] in it.text()
        await it.press("escape", "e")
        await it.say(Previewed(1, "yaml", f"# {LEAK}\n{hostile.ESCAPES}"))
        check(it, "preview")
        assert LEAK[:20] in it.text()
        for text in (LEAK, "~nobody-at-all/x", "~a\0b", "/" * 300 + "x" * 500):
            await it.type(text)
            await it.press("enter")
            check(it, f"export {text[:20]!a}")
            if not it.in_dialog():
                await it.press("e")
        assert it.app.is_running

    drive(steps, WIDE)


def test_a_hostile_workload_in_the_form() -> None:
    async def steps(it: Driven) -> None:
        for text in (LEAK, hostile.ESCAPES + hostile.C1, hostile.SURROGATES + hostile.BIDI):
            config = StudyConfig(WorkloadRef(text, {"data": text}), text, text, study=text)
            it.app.push_screen(OpenDialog(config))
            await it.settle()
            check(it, "form")
            await it.type("")
            await it.press("enter")
            check(it, "objection")
            await it.type(text)
            await it.press("enter")
            assert not it.in_dialog()
        assert it.app.is_running

    drive(steps)
