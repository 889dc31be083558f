"""Questions that may never be answered, each on a daemon thread of its own: who asks waits only as long as he likes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lane(Generic[T]):
    """One question, asked again and again, one at a time; used by one asking thread."""

    def __init__(self, work: Callable[[], T], name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._work = work
        self._name = name
        self._clock = clock
        self._asked = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self._asked_s = 0.0
        self.answer: T | None = None
        """The newest."""

    def ask(self) -> bool:
        """Begin; False if the last question is still under way."""
        if not self._idle.is_set():
            return False
        self._idle.clear()
        self._asked_s = self._clock()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._asked.set()
        return True

    def wait(self, timeout_s: float) -> bool:
        """Until the answer is there; whether it is."""
        return self._idle.wait(max(0.0, timeout_s))

    def waiting_s(self) -> float:
        """How long the question under way has been open; 0 if there is none."""
        return 0.0 if self._idle.is_set() else self._clock() - self._asked_s

    def _serve(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            try:
                self.answer = self._work()
            except Exception:
                # A failure that the work did not foresee: no answer this time, and the lane lives on.
                self.answer = None
            self._idle.set()
