"""While a block is timed the screen changes with the bridge's ticks and with keys, and at no other time."""

from __future__ import annotations

import pytest
from textual.strip import Strip
from textual.widget import Widget

from gputune_tui.engine.events import TaskStarted, TrialFinished, TrialProgress, TrialStarted
from gputune_tui.tui.bridge import TICK_S
from gputune_tui.tui.widgets.lines import LineView
from gputune_tui.tui.widgets.rows import RowList
from tests.ranking.make import complete, launch
from tests.tui import nodes
from tests.tui.scripted import BASELINE, Driven, drive


class Drawn:
    """Counts what is asked to be drawn, and which lines are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refreshes = 0
        self.lines: list[tuple[str | None, int]] = []
        refresh = Widget.refresh

        def counted(widget: Widget, *regions: object, **options: object) -> object:
            self.refreshes += 1
            return refresh(widget, *regions, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Widget, "refresh", counted)
        for view in (LineView, RowList):
            self._count_lines(monkeypatch, view)

    def _count_lines(self, monkeypatch: pytest.MonkeyPatch, view: type[LineView]) -> None:
        render_line = view.render_line

        def counted(widget: LineView, y: int) -> Strip:
            self.lines.append((widget.id, y))
            return render_line(widget, y)

        monkeypatch.setattr(view, "render_line", counted)

    def forget(self) -> None:
        self.refreshes, self.lines = 0, []


def test_the_screen_keeps_still_while_a_block_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(it: Driven) -> None:
        drawn = Drawn(monkeypatch)
        await it.tick(nodes.simulated())
        await it.say(TaskStarted("trial"), TrialStarted(1, BASELINE, 1, 1), TrialProgress(1, "warm_up"))
        assert not it.is_quiet()
        await it.say(TrialProgress(1, "measure", "", 1, 99, 100.0))
        assert it.is_quiet()
        assert it.sampler.quiet == [True]

        async def said(*blocks: int) -> None:
            for block in blocks:
                it.engine.say(TrialProgress(1, "measure", "", block, 99, 100.0))
                await it.settle()
            await it.until(lambda: not it.engine._told)

        drawn.forget()
        await said(*range(2, 12))
        assert (drawn.refreshes, drawn.lines) == (0, [])
        assert "block 1 of 99" in it.panel("running")

        # The tick tells the newest, and nothing but its line is drawn.
        await it.tick()
        assert "block 11 of 99" in it.panel("running")
        assert drawn.lines == [("running", 0)]

        # The next tick has nothing new to draw.
        drawn.forget()
        await it.tick()
        assert drawn.lines == []

        # A key is answered at once, and shows no more than it has to.
        await said(12, 13)
        drawn.forget()
        await it.press("down")
        assert it.tune.knobs.cursor == "micro_batch_size"
        assert {name for name, _ in drawn.lines} == {"knobs"}
        drawn.forget()
        await it.press("right", "left", "right")
        assert ("knobs", 2) in drawn.lines
        assert "block 11 of 99" in it.panel("running")

        # After the block everything is told as it comes.
        it.engine.say(TrialFinished(complete(1, launch(100.0)), 1, 1, None))
        await it.settle()
        await it.tick()
        assert not it.is_quiet()
        assert it.sampler.quiet == [True, False]
        drawn.forget()
        it.engine.say(TrialStarted(2, BASELINE, 1, 1))
        await it.until(lambda: drawn.lines)
        assert "starting" in it.panel("running")

    drive(steps)


def test_it_ticks_twice_a_second() -> None:
    assert TICK_S >= 0.5
