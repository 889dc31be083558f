"""A recorded node as a backend: its snapshots at the pace at which they were taken, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from gputune_tui.domain.telemetry import NodeSnapshot, SamplerSettings
from gputune_tui.errors import UsageError
from gputune_tui.telemetry.recording import read_recording

LAST_SHOWN_S = 1.0
"""How long the last snapshot stands before the recording begins again."""


class ReplayedNode:
    """Holds two snapshots at a time, however long the recording is."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the first snapshot.

        Raises:
            UsageError: it is no recording, or an empty one.
        """
        self._path = path
        self._clock = clock
        self._rest: Iterator[NodeSnapshot]
        self._now: NodeSnapshot
        self._next: NodeSnapshot | None
        self._first_s: float
        self._begin_s: float
        self._rewind()

    def read(self, order: SamplerSettings) -> NodeSnapshot:
        """What was recorded at this point of its time."""
        played_s = self._clock() - self._begin_s
        while self._next is not None and self._next.time_s - self._first_s <= played_s:
            self._now, self._next = self._next, self._following()
        if self._next is None and played_s - (self._now.time_s - self._first_s) >= LAST_SHOWN_S:
            self._rewind()
        shown = replace(self._now, recorded=True)
        return shown if order.gpus else replace(shown, driver=None, cuda=None, devices=(), processes=(), problem=None)

    def close(self) -> None:
        """Close the file."""
        self._rest = iter(())

    def _rewind(self) -> None:
        self._rest = read_recording(self._path)
        first = next(self._rest, None)
        if first is None:
            raise UsageError(f"{self._path} holds no snapshot; record for longer")
        self._begin_s = self._clock()
        self._first_s = first.time_s
        self._now = first
        self._next = self._following()

    def _following(self) -> NodeSnapshot | None:
        """A damaged line ends the recording there: half of it is better than nothing."""
        try:
            return next(self._rest, None)
        except UsageError:
            return None
