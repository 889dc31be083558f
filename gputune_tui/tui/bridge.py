"""The only seam to the engine process and the sampling process: what they say becomes messages of the screen."""

from __future__ import annotations

import asyncio
from typing import Protocol

from textual.message import Message
from textual.message_pump import MessagePump

from gputune_tui.domain.telemetry import NodeSnapshot
from gputune_tui.engine.events import EngineEvent, Problem
from gputune_tui.engine.requests import Open, Request
from gputune_tui.errors import EnvironmentProblem


class Engine(Protocol):
    """What the bridge needs of `engine.client.EngineClient`."""

    def start(self) -> None:
        """Start the engine process."""

    def send(self, request: Request) -> None:
        """Hand over a request without waiting."""

    def poll(self) -> list[EngineEvent]:
        """What it has said since."""

    def fileno(self) -> int:
        """To watch for reading."""

    @property
    def alive(self) -> bool:
        """Whether there is one."""

    def close(self, patience_s: float = 10.0) -> None:
        """End it and all that it runs."""


class Sampler(Protocol):
    """What the bridge needs of `telemetry.collector.Collector`."""

    problem: str | None

    @property
    def age_s(self) -> float | None:
        """Age of the newest snapshot."""

    def start(self) -> None:
        """Start the sampling process."""

    def poll(self) -> NodeSnapshot | None:
        """The newest snapshot since the last call."""

    def set_quiet(self, quiet: bool) -> None:
        """Only the cheapest readings while a block is timed."""

    def set_interval(self, seconds: float) -> None:
        """Seconds between two snapshots."""

    def expand(self, gpus: tuple[int, ...]) -> None:
        """The GPUs of which everything is to be read."""

    def close(self) -> None:
        """End it."""


class EngineSaid(Message):
    """Events of the engine, in order."""

    def __init__(self, events: list[EngineEvent]) -> None:
        super().__init__()
        self.events = events


class NodeSeen(Message):
    """The newest snapshot; an older one that was not yet handled is dropped."""

    def __init__(self, snapshot: NodeSnapshot | None, age_s: float | None, problem: str | None) -> None:
        super().__init__()
        self.snapshot = snapshot
        self.age_s = age_s
        self.problem = problem

    def can_replace(self, message: Message) -> bool:
        """As textual asks it."""
        return isinstance(message, NodeSeen) and (self.snapshot is not None or message.snapshot is None)


TICK_S = 0.5
"""The screen changes at most this often of itself: twice a second is what a timed block may be disturbed by."""


MOST_EMPTY_READS = 50
"""Between two ticks; a long line comes in several parts, each of them a read without an event."""


class Bridge:
    """Owns both clients. While a block is timed what the engine says is only noted, and told with the next tick."""

    def __init__(self, engine: Engine, sampler: Sampler) -> None:
        self._engine = engine
        self._sampler = sampler
        self._listener: MessagePump | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: int | None = None
        self._noted: list[EngineEvent] = []
        self._opened: Open | None = None
        self._empty_reads = 0
        self.quiet = False
        """Whether a block is timed; set by the listener."""

    def start(self, listener: MessagePump) -> None:
        """Start both processes and tell `listener` what they say."""
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._sampler.start()
        self._start_engine()

    def send(self, request: Request) -> None:
        """Ask something of the engine. One that has ended is started anew, with the study that was open."""
        if isinstance(request, Open):
            self._opened = request
        if not self._engine.alive:
            self._start_engine()
            if self._opened is not None and self._opened is not request:
                self._engine.send(self._opened)
        self._engine.send(request)

    def set_quiet(self, quiet: bool) -> None:
        """Tell whether a block is timed."""
        if quiet != self.quiet:
            self.quiet = quiet
            self._sampler.set_quiet(quiet)

    def set_interval(self, seconds: float) -> None:
        """Seconds between two snapshots of the node."""
        self._sampler.set_interval(seconds)

    def expand(self, gpus: tuple[int, ...]) -> None:
        """The GPUs of which everything is to be read."""
        self._sampler.expand(gpus)

    def tick(self) -> None:
        """Called every `TICK_S` by the listener."""
        # Not only when there is something to read: this also sends what a full socket held back.
        self._empty_reads = 0
        self._readable()
        self._tell()
        self._watch()
        snapshot = self._sampler.poll()
        if self._listener is not None:
            self._listener.post_message(NodeSeen(snapshot, self._sampler.age_s, self._sampler.problem))

    def close(self) -> None:
        """End both processes; waits until what runs is ended and stored."""
        self._unwatch()
        self._sampler.close()
        self._engine.close()

    def _start_engine(self) -> None:
        try:
            self._engine.start()
        except EnvironmentProblem as error:
            self._noted.append(Problem(str(error)))
            return
        self._watch()

    def _watch(self) -> None:
        if self._loop is not None and self._watched is None and self._engine.alive:
            self._watched = self._engine.fileno()
            self._loop.add_reader(self._watched, self._readable)

    def _readable(self) -> None:
        events = self._engine.poll()
        self._noted += events
        self._empty_reads = 0 if events else self._empty_reads + 1
        # A socket whose other end has closed stays readable until the engine's exit status is known.
        if not self._engine.alive or self._empty_reads > MOST_EMPTY_READS:
            self._unwatch()
        if not self.quiet:
            self._tell()

    def _tell(self) -> None:
        events, self._noted = self._noted, []
        if events and self._listener is not None:
            self._listener.post_message(EngineSaid(events))

    def _unwatch(self) -> None:
        if self._watched is not None and self._loop is not None:
            self._loop.remove_reader(self._watched)
            self._watched = None
