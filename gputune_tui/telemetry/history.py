"""Ring buffers of the values that graphs show; what was not known is a gap, not a zero."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice

DEFAULT_CAPACITY = 600
"""Ten minutes at one value a second."""


class History:
    """Series by name that advance together: what a tick does not name gets a gap."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        """`capacity`: values kept of each.

        Raises:
            ValueError: it is less than one.
        """
        if capacity < 1:
            raise ValueError(f"a history holds at least one value, not {capacity}")
        self.capacity = capacity
        self._ticks = 0
        self._series: dict[str, deque[float | None]] = {}
        self._named: dict[str, int] = {}

    @property
    def ticks(self) -> int:
        """How many there have been since the beginning."""
        return self._ticks

    def push(self, values: Mapping[str, float | None]) -> None:
        """Add one tick. A name seen for the first time has gaps before it; one that left no value is forgotten."""
        for name in values:
            if name not in self._series:
                gaps = [None] * min(self._ticks, self.capacity)
                self._series[name] = deque(gaps, maxlen=self.capacity)
        self._ticks += 1
        for name, series in list(self._series.items()):
            value = values.get(name)
            series.append(None if value is None or value != value else value)
            if name in values:
                self._named[name] = self._ticks
            elif self._ticks - self._named[name] >= self.capacity:
                del self._series[name], self._named[name]

    def last(self, name: str, count: int | None = None) -> tuple[float | None, ...]:
        """The newest `count` values, all by default, oldest first; fewer where there are fewer, none for a new name."""
        series = self._series.get(name, ())
        return tuple(series) if count is None else tuple(islice(series, max(0, len(series) - count), None))
