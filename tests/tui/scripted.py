"""A scripted engine and sampler, and the program between them, driven key by key."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from rich.segment import Segment
from textual.drivers.headless_driver import HeadlessDriver
from textual.events import Key, Resize
from textual.geometry import Size
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Input

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget, WorkloadRef
from gputune_tui.domain.telemetry import NodeSnapshot
from gputune_tui.domain.trial import Trial
from gputune_tui.engine.commands import Search, StudyConfig
from gputune_tui.engine.events import EngineEvent, StudyOpened, StudyTrials, TaskEnded, TaskStarted
from gputune_tui.engine.requests import Request
from gputune_tui.tui.app import GputuneApp
from gputune_tui.tui.bridge import Bridge
from gputune_tui.tui.screens.main_screen import MainScreen
from gputune_tui.tui.terminal import Look
from gputune_tui.tui.tune_state import TuneState
from gputune_tui.tui.widgets.lines import LineView
from gputune_tui.tui.widgets.node_pane import NodePane
from gputune_tui.tui.widgets.tune_pane import TunePane
from tests.ranking.make import BUDGET, identity

DEADLINE_S = 60.0
NEVER_S = 3600.0
ROUNDS = 3
WIDE, SMALL = (120, 40), (80, 24)
BASELINE = TrainSettings(micro_batch_size=16)
CONFIG = StudyConfig(WorkloadRef("lm", {"size": "tiny"}), "cpu")
STUDY = "/studies/lm"


class ScriptedEngine:
    """Says what the test says, through a real socket, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.starts = 0
        self._told: list[EngineEvent] = []
        self._ours: socket.socket | None = None
        self._theirs: socket.socket | None = None
        self._is_over = False

    @property
    def alive(self) -> bool:
        return self._ours is not None

    def start(self) -> None:
        assert not self.alive
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._is_over = False
        self.starts += 1

    def send(self, request: Request) -> None:
        if self.alive:
            self.requests.append(request)

    def fileno(self) -> int:
        assert self._ours is not None
        return self._ours.fileno()

    def poll(self) -> list[EngineEvent]:
        if self._ours is None:
            return []
        try:
            while self._ours.recv(4096):
                pass
        except BlockingIOError:
            pass
        told, self._told = self._told, []
        if self._is_over:
            self.close()
        return told

    def close(self, patience_s: float = 10.0) -> None:
        for end in (self._ours, self._theirs):
            if end is not None:
                end.close()
        self._ours = self._theirs = None

    def say(self, *events: EngineEvent) -> None:
        """For the test: what the engine says next."""
        assert self._theirs is not None
        self._told += events
        self._theirs.send(b".")

    def end(self, how: str) -> None:
        """For the test: the process is gone, and its last event tells so."""
        self._is_over = True
        self.say(TaskEnded("engine", how, 1))


class ScriptedSampler:
    """Hands out the snapshots that the test puts in."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.age_s: float | None = None
        self.quiet: list[bool] = []
        self.intervals: list[float] = []
        self.expanded: list[tuple[int, ...]] = []
        self.next: NodeSnapshot | None = None

    def start(self) -> None:
        pass

    def poll(self) -> NodeSnapshot | None:
        found, self.next = self.next, None
        if found is not None:
            self.age_s = 0.0
        return found

    def set_quiet(self, quiet: bool) -> None:
        self.quiet.append(quiet)

    def set_interval(self, seconds: float) -> None:
        self.intervals.append(seconds)

    def expand(self, gpus: tuple[int, ...]) -> None:
        self.expanded.append(gpus)

    def close(self) -> None:
        pass


def make_app(
    config: StudyConfig | None = CONFIG, appearance: Look | None = None
) -> tuple[GputuneApp, Bridge, ScriptedEngine, ScriptedSampler]:
    """The program over both."""
    engine, sampler = ScriptedEngine(), ScriptedSampler()
    bridge = Bridge(engine, sampler)
    app = GputuneApp(lambda: bridge, config, Search(), appearance or Look(ansi=False, ascii=False))
    return app, bridge, engine, sampler


def opened(
    trials: Sequence[Trial] = (), budget: MemoryBudget = BUDGET, notes: tuple[str, ...] = ()
) -> tuple[EngineEvent, ...]:
    """What the engine says when a study of `lm` with a global batch of 16 is opened."""
    return (
        TaskStarted("open"),
        StudyOpened(STUDY, identity(), 1, budget, len(trials), notes),
        StudyTrials(tuple(trials), BASELINE),
        TaskEnded("open", None, 0),
    )


@dataclass
class Driven:
    """The running program and both scripts. The clock stands still: `tick` is one of the bridge's ticks."""

    app: GputuneApp
    pilot: Pilot[int]
    bridge: Bridge
    engine: ScriptedEngine
    sampler: ScriptedSampler
    seen_requests: int = field(default=0)

    @property
    def main(self) -> MainScreen:
        found = self.app.screen_stack[0]
        assert isinstance(found, MainScreen)
        return found

    @property
    def tune(self) -> TunePane:
        return self.main.tune

    @property
    def node(self) -> NodePane:
        return self.main.node

    @property
    def state(self) -> TuneState:
        return self.tune.state

    def in_dialog(self) -> bool:
        return len(self.app.screen_stack) > 1

    def is_quiet(self) -> bool:
        """Whether the bridge takes a block to be timed."""
        return self.bridge.quiet

    async def settle(self) -> None:
        """Let all that is under way happen: what a message leads to is a message in the next round."""
        for _ in range(ROUNDS):
            await self.pilot.pause(0)

    async def press(self, *keys: str) -> None:
        for key in keys:
            self.app.post_message(Key(key, key if len(key) == 1 else None))
            await self.settle()

    async def type(self, text: str) -> None:
        """Replace the text of the field that has the keys."""
        field = self.app.focused
        assert isinstance(field, Input)
        field.value = text
        await self.pilot.pause(0)

    async def until(self, ask: Callable[[], object]) -> None:
        """Wait for something to become true."""
        deadline = time.monotonic() + DEADLINE_S
        while not ask():
            assert time.monotonic() < deadline, self.text()
            await self.settle()

    async def say(self, *events: EngineEvent) -> None:
        """The engine says something, and all that follows from it has happened."""
        self.engine.say(*events)
        taken = self.bridge.quiet
        await self.until(lambda: not self.engine._told)
        if taken:
            self.bridge.tick()
        await self.settle()

    async def tick(self, snapshot: NodeSnapshot | None = None) -> None:
        """One tick, with news of the node or without."""
        if snapshot is not None:
            self.sampler.next = snapshot
        self.bridge.tick()
        await self.settle()

    async def resize(self, width: int, height: int) -> None:
        # As `Pilot.resize_terminal`, which waits besides until the whole process is idle.
        driver, size = self.app._driver, Size(width, height)
        assert isinstance(driver, HeadlessDriver)
        driver._size = size
        self.app.post_message(Resize(size, size))
        await self.until(lambda: self.app.size == self.app.screen._compositor.size == size)
        await self.settle()

    def asked(self) -> list[Request]:
        """What the engine was asked since the last call."""
        new = self.engine.requests[self.seen_requests :]
        self.seen_requests = len(self.engine.requests)
        return new

    def strips(self) -> list[Strip]:
        """The whole screen, dialogs included."""
        update = self.app.screen._compositor.render_update(full=True, screen_stack=self.app._background_screens)
        return [Strip.join(strips) for strips in update.strips]  # type: ignore[union-attr]

    def segments(self) -> list[Segment]:
        return [segment for strip in self.strips() for segment in strip]

    def rows(self) -> list[str]:
        """The rows of the screen as text."""
        return [strip.text for strip in self.strips()]

    def text(self) -> str:
        return "\n".join(self.rows())

    def seen(self, name: str) -> str:
        """What is on the screen of one panel of the main screen, border included."""
        x, y, width, height = self.main.query_one(f"#{name}").region
        return "\n".join(strip.crop(x, x + width).text for strip in self.strips()[y : y + height])

    def panel(self, name: str) -> str:
        """The lines of one panel of the main screen, whether they fit in or not."""
        view = self.main.query_one(f"#{name}", LineView)
        return "\n".join("".join(text for text, _ in line) for line in view.lines)

    def last_said(self) -> str:
        return self.state.messages[-1].text if self.state.messages else ""


@asynccontextmanager
async def driven(
    size: tuple[int, int] = SMALL,
    config: StudyConfig | None = CONFIG,
    appearance: Look | None = None,
    trials: Sequence[Trial] | None = (),
) -> AsyncIterator[Driven]:
    """A running program; with `trials` the study is open and they are in it."""
    app, bridge, engine, sampler = make_app(config, appearance)
    async with app.run_test(size=size) as pilot:
        it = Driven(app, pilot, bridge, engine, sampler)
        await it.until(lambda: engine.alive)
        await it.until(lambda: engine.requests if config is not None else it.in_dialog())
        it.asked()
        await it.settle()
        if config is not None and trials is not None:
            await it.say(*opened(trials))
        yield it
    bridge.close()


def drive(
    steps: Callable[[Driven], Awaitable[None]],
    size: tuple[int, int] = SMALL,
    config: StudyConfig | None = CONFIG,
    appearance: Look | None = None,
    trials: Sequence[Trial] | None = (),
) -> None:
    """Run `steps` on a program of its own. The clock of the screen stands still; only the test ticks."""

    async def run() -> None:
        async with driven(size, config, appearance, trials) as it:
            await steps(it)

    with patch("gputune_tui.tui.screens.main_screen.TICK_S", NEVER_S):
        asyncio.run(run())
