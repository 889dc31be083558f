"""Two panes or two tabs, and that no size at any moment does harm."""

from __future__ import annotations

from itertools import cycle

from textual.events import Key

from gputune_tui.domain.trial import FailureReason
from gputune_tui.engine.requests import Preview
from tests.ranking.make import complete, failed, launch
from tests.tui import nodes
from tests.tui.scripted import BASELINE, WIDE, Driven, drive

TRIALS = [complete(number, launch(100.0 + number)) for number in range(1, 30)] + [failed(30, FailureReason.CRASH)]
ALL = ((80, 24), (20, 5), (200, 50), (1, 1), (120, 40))


async def check(it: Driven, width: int, height: int) -> None:
    await it.resize(width, height)
    strips = it.strips()
    assert len(strips) == height
    assert all(strip.cell_length == width for strip in strips)


def test_no_size_does_harm() -> None:
    async def steps(it: Driven) -> None:
        await it.tick(nodes.node(*nodes.gpus(2), nodes.lost(2), processes=(nodes.process(),)))
        await it.press("right", "down", "down", "tab", "pagedown", "down")
        selected = it.tune.board.cursor
        for size in ALL:
            await check(it, *size)
            it.app.post_message(Key("down" if it.tune.board.cursor == selected else "up", None))
            await it.tick(nodes.node(*nodes.gpus(9)))
        if it.tune.board.cursor != selected:
            await it.press("up")
        sizes = cycle([(20, 5), (120, 40), (1, 1)])
        for keys in ("w", "question_mark", "m", "enter", "e", "ctrl+p"):
            await it.press(keys)
            assert it.in_dialog()
            await check(it, *next(sizes))
            await it.press("escape")
            if it.in_dialog():
                await it.press("escape")
            assert not it.in_dialog(), keys
        await check(it, 120, 40)
        assert it.tune.board.cursor == selected
        assert it.tune.knobs.cursor == "activation_checkpointing"
        assert it.app.focused is it.tune.board
        assert it.state.b is not None
        assert it.state.b.precision == "bf16"
        assert [type(request) for request in it.asked()] == [Preview]

    drive(steps, WIDE, trials=TRIALS)


def test_two_tabs_below_120_columns() -> None:
    async def steps(it: Driven) -> None:
        def shown() -> list[bool]:
            return [it.node.display, it.tune.display]

        await it.tick(nodes.node(*nodes.gpus(9), nodes.lost(9)))
        assert "Monitor | Tune" in it.rows()[0]
        assert shown() == [False, True]
        # One cell for each GPU and the CPU stay in sight.
        assert "0▁ 1▂ 2▂ 3▃" in it.rows()[0]
        assert "9x" in it.rows()[0]
        assert "CPU 50 %" in it.rows()[0]
        await it.press("1")
        assert shown() == [True, False]
        await it.until(lambda: "LOST" in it.text())
        await it.press("f4")
        assert shown() == [False, True]
        assert it.app.focused is it.tune.knobs
        await it.press("right")
        assert it.state.b != BASELINE
        # From 120 columns there are no tabs; what had the keys has them.
        await it.press("tab", "f3")
        await it.resize(120, 40)
        assert shown() == [True, True]
        assert "Monitor | Tune" not in it.rows()[0]
        await it.resize(119, 40)
        assert shown() == [True, False]
        await it.press("2", "right", "left", "left")
        assert it.state.b == BASELINE

    drive(steps, trials=TRIALS)
