"""`monitor` on a screen of its own: keys, tabs of lists, details in place, a recording beside it; and what it sends."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate
from textual.pilot import Pilot
from textual.strip import Strip

from gputune_tui.domain.telemetry import MigSnapshot, NodeSnapshot
from gputune_tui.telemetry.collector import Collector
from gputune_tui.telemetry.recording import Recorder, read_recording
from gputune_tui.telemetry.simulated import SimulatedNode
from gputune_tui.tui.monitor_app import MonitorApp, MonitorOptions
from gputune_tui.tui.screens import monitor_screen
from gputune_tui.tui.terminal import Look
from gputune_tui.tui.thrift import ThriftyUpdate
from tests.telemetry.snapshots import device
from tests.tui import nodes

NEVER_S = 3600.0
ROUNDS = 5


def simulated(count: int, t_s: float = 30.0) -> NodeSnapshot:
    return SimulatedNode(0, count, lambda: 0.0).at(t_s)


class Source:
    """In the collector's place."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.age_s: float | None = None
        self.next: NodeSnapshot | None = None
        self.intervals: list[float] = []
        self.expanded: list[tuple[int, ...]] = []

    def poll(self) -> NodeSnapshot | None:
        found, self.next = self.next, None
        if found is not None:
            self.age_s = 0.0
        return found

    def set_interval(self, seconds: float) -> None:
        self.intervals.append(seconds)

    def expand(self, gpus: tuple[int, ...]) -> None:
        self.expanded.append(gpus)


class Monitor:
    """The running program; the clock stands still."""

    def __init__(self, app: MonitorApp, pilot: Pilot[int], source: Source) -> None:
        self.app, self.pilot, self.source = app, pilot, source

    async def settle(self) -> None:
        for _ in range(ROUNDS):
            await self.pilot.pause(0)

    async def press(self, *keys: str) -> None:
        for key in keys:
            self.app.simulate_key(key)
            await self.settle()

    async def tick(self, snapshot: NodeSnapshot) -> None:
        self.source.next = snapshot
        self.app.main.look()
        await self.settle()

    def text(self) -> str:
        update = self.app.screen._compositor.render_update(full=True, screen_stack=self.app._background_screens)
        return "\n".join(Strip.join(strips).text for strips in update.strips)  # type: ignore[union-attr]


def drive(
    steps: Callable[[Monitor], Awaitable[None]],
    size: tuple[int, int] = (120, 40),
    recorder: Recorder | None = None,
    look: Look | None = None,
) -> None:
    async def run() -> None:
        source = Source()
        app = MonitorApp(cast("Collector", source), recorder, look or Look(ansi=False, ascii=False), MonitorOptions())
        async with app.run_test(size=size) as pilot:
            await steps(Monitor(app, pilot, source))

    before = monitor_screen.FIRST_TICK_S
    monitor_screen.FIRST_TICK_S = NEVER_S
    try:
        asyncio.run(run())
    finally:
        monitor_screen.FIRST_TICK_S = before


def test_lists_details_and_interval() -> None:
    async def steps(it: Monitor) -> None:
        assert "reading the node" in it.text()
        await it.tick(simulated(4))
        assert it.app.main.node.processes.has_focus
        assert "UTL" in it.text()
        await it.press("tab")
        assert it.app.main.node.gpus.has_focus
        await it.press("enter")
        assert "UUID GPU-simulated-0" in it.text()
        await it.press("right", "enter")
        assert "UUID GPU-simulated-1" in it.text()
        assert "UUID GPU-simulated-0" not in it.text()
        await it.press("down", "down", "enter")
        await it.tick(simulated(4, 31.0))
        assert "UUID GPU-simulated-3" in it.text()
        await it.press("enter")
        assert it.source.expanded == [(0,), (1,), (3,), ()]
        assert "UUID" not in it.text()
        await it.press("plus", "minus", "minus", "minus")
        assert it.source.intervals == [1.5, 1.0, 0.5, 0.5]
        assert "0.5 s live" in it.text()
        await it.press("z")
        assert "paused" in it.text()
        await it.press("right_square_bracket", "left_square_bracket", "k", "question_mark")
        assert "Keys" in it.text()
        assert "Run one trial" not in it.text()
        await it.press("q", "q")
        assert it.app.return_value == 0

    drive(steps)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50), (60, 16), (20, 5), (1, 1)])
@pytest.mark.parametrize("look", [Look(ansi=False, ascii=False), Look(ansi=True, ascii=True)], ids=["unicode", "ascii"])
def test_nodes_of_every_kind_in_every_size(size: tuple[int, int], look: Look) -> None:
    cut = replace(device(1), mig_enabled=True, mig=(MigSnapshot(7, 0, "MIG-7", "MIG 1g.10gb", 5, 9),) * 3)

    async def steps(it: Monitor) -> None:
        for found in (
            simulated(1),
            nodes.node(*nodes.gpus(9), processes=(nodes.process(),) * 9),
            nodes.node(device(0), cut, nodes.lost(2), nodes.unknown(3)),
            nodes.node(problem=nodes.PROBLEM),
            nodes.node(*nodes.gpus(64)),
            simulated(16),
        ):
            await it.tick(found)
            await it.press("tab", "enter", "down", "right")
            rows = it.text().split("\n")
            assert len(rows) == size[1]
            if size >= (60, 16) and found.devices:
                assert "x" in it.text() or "LOST" in it.text() or not any(d.state == "lost" for d in found.devices)

    drive(steps, size, look=look)


def test_every_one_of_64_gpus_is_in_sight_at_60x16() -> None:
    async def steps(it: Monitor) -> None:
        await it.tick(nodes.node(*nodes.gpus(64), processes=tuple(nodes.process(pid=n) for n in range(6))))
        text = it.text()
        for number in range(64):
            assert any(f"{number}{level}" in text for level in "▁▂▃▄▅▆▇█"), number
        assert text.count("python") == 6

    drive(steps, (60, 16))


def test_what_is_seen_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "recording"
    recorder = Recorder(path)
    seen = [simulated(1, float(second)) for second in range(3)]

    async def steps(it: Monitor) -> None:
        for found in seen:
            await it.tick(found)
        assert "recording" in it.text()

    drive(steps, recorder=recorder)
    recorder.close()
    assert list(read_recording(path)) == seen


def test_a_problem_is_told(tmp_path: Path) -> None:
    async def steps(it: Monitor) -> None:
        it.source.problem = "The process that reads the node died; it is replaced."
        await it.tick(simulated(1))
        assert "it is replaced" in it.text()

    drive(steps, (160, 40))


RED, BOLD = Style.parse("red on black"), Style.parse("bold red on black")


def sent(strip: Strip, begin: int, end: int) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor")
    update = ChopsUpdate([{0: strip}], [(0, begin, end)], [[strip.cell_length]])
    return ThriftyUpdate(update).render_segments(console)


def test_only_the_columns_that_changed_are_sent() -> None:
    strip = Strip([Segment("abc", RED), Segment("def", RED), Segment("ghi", BOLD)])
    assert sent(strip, 1, 4) == "\x1b[1;2H\x1b[0;31;40mbcd\x1b[0m"
    assert sent(strip, 5, 9) == "\x1b[1;6H\x1b[0;31;40mf\x1b[0;1;31;40mghi\x1b[0m"
    assert sent(strip, 0, 9).count("ghi") == 1
    wide = Strip([Segment("漢字漢", RED)])
    assert sent(wide, 1, 3).startswith("\x1b[1;2H\x1b[0;31;40m ")
    assert len(sent(wide, 2, 4)) == len("\x1b[1;3H\x1b[0;31;40m字\x1b[0m")


def test_a_tick_without_news_sends_nothing() -> None:
    async def steps(it: Monitor) -> None:
        # Long enough that the graph's columns are all alike.
        found = nodes.node(*nodes.gpus(2), processes=(nodes.process(),))
        for _ in range(400):
            it.source.next = found
            it.app.main.look()
        await it.settle()
        drawn: list[object] = []
        before = it.app._display

        def display(screen: object, renderable: object) -> None:
            if renderable is not None:
                drawn.append(renderable)
            before(screen, renderable)  # type: ignore[arg-type]

        it.app._display = display  # type: ignore[method-assign]
        for _ in range(10):
            await it.tick(found)
        assert drawn == []

    drive(steps)
