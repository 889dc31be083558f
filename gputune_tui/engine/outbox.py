"""What the engine process has yet to tell a screen that may not be reading: bounded, never waited for."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gputune_tui.engine.events import (
    EngineEvent,
    PairFinished,
    Problem,
    TrialFinished,
    TrialProgress,
    TrialStarted,
    encode_event,
)

MAX_EVENT_BYTES = 16 << 20
"""One line. A comparison's end, with every step time of 16 launches of a very fast step, has some 3 MiB."""
MAX_BACKLOG_BYTES = 4 << 20
"""Lines that wait. Beyond this the news of trials is dropped, and the reader is told all trials anew."""
BURST_BYTES = 256 << 10
"""The most that is sent between two looks at the trial."""

Stream = Callable[[], Iterator[EngineEvent]]
"""Events that are made only when they can be sent, and then one after the other."""
_RESYNCED = (TrialStarted, TrialProgress, TrialFinished, PairFinished)
"""What a reader that fell behind can do without, once it has been told all trials anew."""


@dataclass(frozen=True)
class _Item:
    line: bytes = b""
    stream: Stream | None = None
    can_be_dropped: bool = False
    progress_of: int | None = None
    """The trial whose progress this is."""


class Outbox:
    """Lines for one connection, in order; of the progress of one trial only the newest waits."""

    def __init__(self, resync: Stream, limit_bytes: int = MAX_BACKLOG_BYTES) -> None:
        """`resync` tells everything that dropped events would have told."""
        self._resync = resync
        self._limit_bytes = limit_bytes
        self._items: dict[int, _Item] = {}
        self._progress: dict[int, int] = {}
        """Key in `_items` of the progress that waits, by trial."""
        self._next_key = 0
        self._stream: Iterator[EngineEvent] | None = None
        self._sending = memoryview(b"")
        self.backlog_bytes = 0

    @property
    def is_pending(self) -> bool:
        """True while anything waits."""
        return bool(self._sending or self._items or self._stream is not None)

    @property
    def is_congested(self) -> bool:
        """True where even what cannot be dropped passes the limit: nothing more should be asked."""
        return self.backlog_bytes > self._limit_bytes

    def put(self, event: EngineEvent) -> None:
        """Queue one event."""
        line = encode_event(event)
        if len(line) > MAX_EVENT_BYTES:
            line = encode_event(Problem(f"{type(event).__name__} is too large to show; the study holds what it tells"))
        trial_id = event.trial_id if isinstance(event, TrialProgress) else None
        if trial_id is not None and trial_id in self._progress:
            self._take_out(self._progress[trial_id])
        self._add(_Item(line, can_be_dropped=isinstance(event, _RESYNCED), progress_of=trial_id))
        if self.backlog_bytes > self._limit_bytes:
            self._drop_trials()

    def put_stream(self, stream: Stream) -> None:
        """Queue events that are made when their turn comes."""
        self._add(_Item(stream=stream))

    def send(self, connection: socket.socket) -> None:
        """Send what the non-blocking `connection` takes now.

        Raises:
            OSError: the reader is gone.
        """
        sent = 0
        while sent < BURST_BYTES and (self._sending or self._load()):
            try:
                count = connection.send(self._sending)
            except BlockingIOError:
                return
            self._sending = self._sending[count:]
            sent += count

    def _load(self) -> bool:
        """Make the next line the one that is sent; False where there is none."""
        while True:
            if self._stream is not None:
                event = next(self._stream, None)
                if event is not None:
                    self._sending = memoryview(encode_event(event))
                    return True
                self._stream = None
            if not self._items:
                return False
            item = self._take_out(next(iter(self._items)))
            self._stream = item.stream() if item.stream else None
            if item.line:
                self._sending = memoryview(item.line)
                return True

    def _add(self, item: _Item) -> None:
        self._items[self._next_key] = item
        self.backlog_bytes += len(item.line)
        if item.progress_of is not None:
            self._progress[item.progress_of] = self._next_key
        self._next_key += 1

    def _take_out(self, key: int) -> _Item:
        item = self._items.pop(key)
        self.backlog_bytes -= len(item.line)
        if item.progress_of is not None:
            del self._progress[item.progress_of]
        return item

    def _drop_trials(self) -> None:
        """Keep what is said once; in place of the rest stands one account of all trials."""
        dropped = [key for key, item in self._items.items() if item.can_be_dropped or item.stream is not None]
        for key in dropped:
            self._take_out(key)
        if dropped:
            self.put_stream(self._resync)
