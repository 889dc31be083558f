"""What waits for a reader that does not read: bounded, in order, and enough to catch up."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import Launch, MemoryPeaks, Trial, TrialState
from gputune_tui.engine.events import (
    EngineEvent,
    Problem,
    StudyTrials,
    TaskEnded,
    TaskStarted,
    TrialFinished,
    TrialProgress,
    TrialStarted,
    decode_event,
)
from gputune_tui.engine.outbox import MAX_EVENT_BYTES, Outbox
from gputune_tui.engine.wire import LineReader

LIMIT_BYTES = 20_000
SETTINGS = TrainSettings()


def finished(number: int, steps: int = 50) -> TrialFinished:
    launch = Launch((), (0.5,) * steps, 0, MemoryPeaks())
    return TrialFinished(Trial(number, SETTINGS, TrialState.COMPLETE, launches=(launch,)), number, None, None)


class Line:
    """An outbox and the two ends of its connection."""

    def __init__(self) -> None:
        self.told = 0
        self.outbox = Outbox(self._resync, LIMIT_BYTES)
        self.near, self.far = socket.socketpair()
        for end in (self.near, self.far):
            end.setblocking(False)
        self._lines = LineReader(MAX_EVENT_BYTES)

    def _resync(self) -> Iterator[EngineEvent]:
        self.told += 1
        yield StudyTrials((), SETTINGS, first=True, last=False)
        yield StudyTrials((), SETTINGS, first=False, last=True)

    def fill(self) -> None:
        """Leave no room in the connection."""
        with suppress(BlockingIOError):
            while self.near.send(b" " * 4096 + b"\n"):
                pass

    def read(self) -> list[EngineEvent]:
        """All that waits, as a reader gets it; what filled the connection is left out."""
        events: list[EngineEvent] = []
        while True:
            self.outbox.send(self.near)
            try:
                data = self.far.recv(1 << 16)
            except BlockingIOError:
                if not self.outbox.is_pending:
                    return events
                continue
            events += [decode_event(line) for line in self._lines.feed(data) if line.strip()]


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.near.close()
    line.far.close()


def test_events_come_in_order(line: Line) -> None:
    events: list[EngineEvent] = [TaskStarted("trial"), TrialStarted(1, SETTINGS, 1, 1), finished(1)]
    for event in events:
        line.outbox.put(event)
    assert line.read() == events
    assert line.outbox.backlog_bytes == 0


def test_only_the_newest_progress_of_a_trial_waits(line: Line) -> None:
    line.fill()
    line.outbox.put(TaskStarted("trial"))
    for blocks in range(10_000):
        line.outbox.put(TrialProgress(blocks % 2, "measure", blocks=blocks))
        line.outbox.send(line.near)
    assert line.outbox.backlog_bytes < 1000
    assert line.read() == [
        TaskStarted("trial"),
        TrialProgress(0, "measure", blocks=9998),
        TrialProgress(1, "measure", blocks=9999),
    ]
    line.outbox.put(TrialProgress(0, "finish"))
    assert line.read() == [TrialProgress(0, "finish")]


def test_a_reader_far_behind_is_told_all_trials_instead(line: Line) -> None:
    line.fill()
    line.outbox.put(TaskStarted("search"))
    largest = 0
    for number in range(1, 1000):
        line.outbox.put(TrialStarted(number, SETTINGS, number, None))
        line.outbox.put(finished(number))
        line.outbox.send(line.near)
        largest = max(largest, line.outbox.backlog_bytes)
    line.outbox.put(TaskEnded("search", None, 0))
    assert largest <= LIMIT_BYTES + 1000
    assert line.told == 0, "an account is made when it can be sent"
    events = line.read()
    assert line.told == 1
    assert events[:3] == [
        TaskStarted("search"),
        StudyTrials((), SETTINGS, first=True, last=False),
        StudyTrials((), SETTINGS, first=False, last=True),
    ]
    assert events[-2:] == [finished(999), TaskEnded("search", None, 0)]


def test_what_is_said_once_is_never_dropped(line: Line) -> None:
    line.fill()
    said = [TaskEnded(f"{number}", "x" * 100, 1) for number in range(400)]
    for event in said:
        line.outbox.put(event)
    assert line.outbox.is_congested
    line.outbox.put(finished(1))
    assert line.read()[:400] == said
    assert not line.outbox.is_congested


def test_a_line_that_no_reader_takes_is_replaced(line: Line) -> None:
    line.outbox.put(TaskEnded("trial", "x" * MAX_EVENT_BYTES, 1))
    (event,) = line.read()
    assert isinstance(event, Problem)
    assert "too large" in event.text


def test_a_reader_that_is_gone_is_an_error(line: Line) -> None:
    line.far.close()
    line.outbox.put(TaskStarted("trial"))
    with pytest.raises(OSError, match="Broken pipe"):
        line.outbox.send(line.near)
