"""A clock, a device with a queue, a loader and a step that take exactly the time they are told to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from gputune_tui.domain.protocol import Event
from gputune_tui.trainer.contention import CpuReading, CpuWatch
from gputune_tui.trainer.events import EventSink
from gputune_tui.trainer.train_step import PlainSteps, StepResult


class Clock:
    """Seconds that pass only when somebody waits; stands for the `time` module of the code under test."""

    def __init__(self) -> None:
        self.now = 1024.0

    def perf_counter(self) -> float:
        """The monotonic clock."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class ScriptedDevice:
    """Work is queued at once and done later, as on a GPU; waiting for it is what `synchronize` does."""

    kind = "cuda"
    name = "scripted"
    uuid: str | None = None
    torch_device = torch.device("cpu")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._idle_from = clock.now
        self.synced_at: list[float] = []

    def launch(self, seconds: float) -> None:
        """Queue work."""
        self._idle_from = max(self._idle_from, self._clock.now) + seconds

    def synchronize(self) -> None:
        """Wait for all of it."""
        self._clock.now = max(self._clock.now, self._idle_from)
        self.synced_at.append(self._clock.now)

    def mark(self) -> float:
        """When the work queued so far is done."""
        return max(self._idle_from, self._clock.now)

    def seconds_between(self, start: float, end: float) -> float:
        """Between two marks."""
        return end - start


class ScriptedStep:
    """A step that queues `seconds(n)` of device work for its n-th run; its batches are their own sample counts."""

    def __init__(self, clock: Clock, device: ScriptedDevice, seconds: Callable[[int], float]) -> None:
        self._clock = clock
        self._device = device
        self._seconds = seconds
        self.runs = 0
        self.most_batches: int | None = None
        """So many batches of a window are taken and the next is not asked for; None: until the window ends."""
        self.observed = 0
        self.skipped: Callable[[int], bool] = lambda _run: False
        self.loss: Callable[[int], float] = lambda run: 1.0 / (run + 1)
        self.phases_s: dict[str, float] = {}
        """Device seconds of each phase of an instrumented run."""
        self.extra_s = 0.0
        """Device seconds that the next run takes more, and none after it."""
        self.rest_s = 0.0
        """Host seconds of an instrumented run outside all phases."""

    is_plain = False

    def run_plain(self, batches: Iterator[Any], end: Callable[[], Any]) -> PlainSteps:
        """Never asked for."""
        raise NotImplementedError

    def run(
        self, window: Iterable[Any], mark: Callable[[str], None] | None = None, observe: bool = False
    ) -> StepResult:
        """One step."""
        samples, batches = 0, 0
        for batch in itertools.islice(window, self.most_batches):
            samples += batch
            batches += 1
        if mark is None:
            self._device.launch(self._seconds(self.runs) + self.extra_s)
            self.extra_s = 0.0
        else:
            for phase, seconds in self.phases_s.items():
                self._device.launch(seconds)
                mark(phase)
            self._clock.wait(self.rest_s)
        loss = torch.tensor(self.loss(self.runs))
        skipped = self.skipped(self.runs)
        self.runs += 1
        self.observed += observe
        return StepResult(samples, batches, skipped, loss, torch.tensor(1.0) if observe else None)


class Loader:
    """Windows made in the background, one every `make_s`; the first `ready` are there when training starts."""

    def __init__(self, clock: Clock, ready: int = 0, make_s: float = 0.0) -> None:
        self._clock = clock
        self._ready = ready
        self._make_s = make_s
        self.taken = 0

    def windows(self, sizes: Sequence[Iterable[int]] = ((8,),)) -> Iterator[Iterator[int]]:
        """Windows of batches for ever; `sizes` are repeated."""
        made_at = self._clock.now
        taken_at: list[float] = []
        for number, window in enumerate(itertools.cycle(sizes)):
            if number >= self._ready:
                # The queue is bounded: the loader starts on a window when an earlier one has been taken.
                room_at = taken_at[number - self._ready] if self._ready else self._clock.now
                made_at = max(made_at, room_at) + self._make_s
                self._clock.now = max(self._clock.now, made_at)
            taken_at.append(self._clock.now)
            self.taken += 1
            yield iter(window)


class ScriptedCpu(CpuWatch):
    """CPUs of which others use what `others` says, block by block; the trial uses the rest."""

    def __init__(self, others: Sequence[float] = ()) -> None:
        super().__init__()
        self._others = iter(others)
        self._reads = 0
        self._busy_s = 0.0
        self._own_s = 0.0

    def read(self) -> CpuReading:
        """Every second reading ends a block of one CPU-second."""
        self._reads += 1
        if self._reads % 2 == 0:
            self._busy_s += 1.0
            self._own_s += 1.0 - next(self._others, 0.0)
        return CpuReading(self._busy_s, 0.0, 0.0, self._own_s)


class Recorder(EventSink):
    """Keeps what would be written to the parent."""

    def __init__(self) -> None:
        super().__init__(None)
        self.events: list[Event] = []
        self.beats = 0

    def send(self, event: Event) -> None:
        """Keep it."""
        self.events.append(event)

    def beat(self, detail: str = "") -> None:
        """Count it."""
        self.beats += 1
