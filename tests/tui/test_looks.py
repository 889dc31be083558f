"""The screen as text, row by row, and as pictures with its colours; and terminals that have only sixteen.

After a wanted change: GPUTUNE_SNAPSHOTS=write pytest tests/tui/test_looks.py, and read the difference.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from rich.color import ColorType

from gputune_tui.domain.trial import FailureReason, StepBreakdown
from gputune_tui.engine.events import PairFinished, TaskStarted, TrialProgress, TrialStarted
from gputune_tui.tui.terminal import Look
from tests.ranking.make import MIB, complete, failed, launch
from tests.tui import nodes
from tests.tui.scripted import BASELINE, WIDE, Driven, drive

FOLDER = Path(__file__).parent / "snapshots"
DARK, ANSI, ASCII = Look(ansi=False, ascii=False), Look(ansi=True, ascii=False), Look(ansi=True, ascii=True)
B = replace(BASELINE, precision="bf16", num_workers=2, prefetch_factor=2)
STEP = StepBreakdown(0.002, None, 0.03, 0.06, 0.005, None, 0.003, 0.1)
TRIALS = [
    complete(1, launch(100.0, 101.0, 102.0, breakdown=STEP), settings=BASELINE),
    complete(2, launch(150.0, 151.0, 152.0, peak=700 * MIB, notes=("BatchNorm sees micro-batch 8",)), settings=B),
    complete(3, launch(149.0, 150.0, 152.0, peak=800 * MIB), settings=replace(B, channels_last=True)),
    complete(4, launch(60.0, peak=2000 * MIB), settings=replace(BASELINE, precision="fp16")),
    failed(5, FailureReason.DEVICE_OOM, settings=replace(BASELINE, activation_checkpointing="full")),
]


async def fill(it: Driven) -> None:
    """A comparison runs on a node with two GPUs."""
    await it.tick(nodes.simulated())
    await it.press("right", "down", "down")
    await it.say(
        TaskStarted("a/b"),
        TrialStarted(6, BASELINE, 1, None, "A"),
        TrialStarted(7, B, 2, None, "B"),
        PairFinished(3, 1.49, 1.44, 1.55, "undecided"),
        TrialProgress(7, "warm_up", "", 4, 12, 151.0),
    )


async def compare(name: str, it: Driven, picture: bool = False) -> None:
    """Exactly what is stored; trailing blanks apart. The text first: it can be read in a difference."""
    await it.until(lambda: it.rows()[-1].strip())  # the footer is built anew for another focus
    stored(f"{name}.txt", "\n".join(row.rstrip() for row in it.rows()) + "\n")
    if picture:
        stored(f"{name}.svg", it.app.export_screenshot(title=name))


def stored(name: str, shown: str) -> None:
    """Compare with a stored snapshot, or store it where that is asked for."""
    path = FOLDER / name
    if os.environ.get("GPUTUNE_SNAPSHOTS") == "write":
        path.write_text(shown, encoding="utf-8")
    same = path.read_text(encoding="utf-8") == shown
    assert same, f"another screen than {path.name}; see the head of this file"


def is_of_terminal(it: Driven) -> bool:
    """Whether all colours on the screen are the terminal's own."""
    styles = [segment.style for segment in it.segments() if segment.style is not None]
    colours = [colour for style in styles for colour in (style.color, style.bgcolor) if colour is not None]
    return all(colour.type in (ColorType.DEFAULT, ColorType.STANDARD) for colour in colours)


@pytest.mark.parametrize(("name", "look"), [("dark", DARK), ("ansi", ANSI)])
def test_the_screen(name: str, look: Look) -> None:
    async def steps(it: Driven) -> None:
        await fill(it)
        await compare(f"{name}-120x40", it, picture=True)
        assert is_of_terminal(it) == look.ansi
        await it.resize(80, 24)
        await compare(f"{name}-80x24-tune", it, picture=True)
        await it.press("1")
        # The panels are laid out when the pane has its size, and their rows when they have theirs.
        for _ in range(3):
            await it.settle()
        await compare(f"{name}-80x24-monitor", it)
        await it.press("2")
        if look.ansi:
            for keys in ("w", "question_mark", "e"):
                await it.press(keys)
                assert it.in_dialog()
                assert is_of_terminal(it), keys
                await it.press("escape")

    drive(steps, WIDE, appearance=look, trials=TRIALS)


def test_the_screen_in_ascii() -> None:
    async def steps(it: Driven) -> None:
        await fill(it)
        await compare("ascii-120x40", it)

    drive(steps, WIDE, appearance=ASCII, trials=TRIALS)
