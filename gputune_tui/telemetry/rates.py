"""Rates of counters that only grow: differences of two readings."""

from __future__ import annotations

from collections.abc import Mapping


class Rates:
    """Keeps the last reading of each counter; unknown until there are two, and where a counter went backwards."""

    def __init__(self, least_span_s: float = 0.2) -> None:
        """`least_span_s`: over less than this the last rates are kept."""
        self._least_span_s = least_span_s
        self._at_s: float | None = None
        self._counters: dict[str, int] = {}
        self._rates: dict[str, float] = {}

    def take(self, counters: Mapping[str, int | None], now: float) -> Mapping[str, float]:
        """Rates per second by name. A counter that is smaller than before has been reset or ran over."""
        span_s = None if self._at_s is None else now - self._at_s
        if span_s is not None and span_s < self._least_span_s:
            return self._rates
        known = {name: value for name, value in counters.items() if value is not None}
        if span_s is not None:
            self._rates = {
                name: round((value - self._counters[name]) / span_s, 1)
                for name, value in known.items()
                if value >= self._counters.get(name, value + 1)
            }
        self._at_s, self._counters = now, known
        return self._rates

    def forget(self) -> None:
        """The next reading is the first one."""
        self._at_s, self._counters, self._rates = None, {}, {}
