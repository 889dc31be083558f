"""All GPUs of the node without ever waiting for the driver: a call that hangs makes its GPU stale, and no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Protocol

from gputune_tui.domain.telemetry import DeviceSnapshot
from gputune_tui.telemetry.lanes import Lane
from gputune_tui.telemetry.nvml_driver import DriverFacts
from gputune_tui.telemetry.nvml_processes import GpuProcess
from gputune_tui.telemetry.nvml_reader import no_values

ANSWER_S = 0.3
"""How long a tick waits for the answers to its own questions; later ones come with the next tick."""
STALE_S = 2.0
"""A question open for longer makes the values old."""
OPEN_PATIENCE_S = 5.0
"""The driver needs about a second to wake up cards without persistence mode."""
REOPEN_S = 30.0
"""Between two attempts to open a driver that could not be opened."""


class GpuDevice(Protocol):
    """One GPU, read on one thread."""

    def read(self, regular: bool, expanded: bool) -> DeviceSnapshot:
        """The numbers now; `regular` with those of every second tick, `expanded` with what only a close look needs."""

    def processes(self) -> tuple[GpuProcess, ...]:
        """Who computes on it."""


class GpuDriver(Protocol):
    """A driver that may hang in every call."""

    def open(self) -> DriverFacts:
        """Begin; tells what is there, or why nothing is."""

    def device(self, index: int) -> GpuDevice:
        """One GPU of it."""


@dataclass(frozen=True)
class GpuReading:
    """The GPUs at one tick."""

    driver: str | None = None
    cuda: str | None = None
    devices: tuple[DeviceSnapshot, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    problem: str | None = None
    process_note: str | None = None
    listed_s: tuple[float | None, ...] = ()
    """By device, the wall clock just before its list of processes was asked for; None before the first."""


class _Slot:
    """One GPU with its lane and what it told last."""

    def __init__(self, device: GpuDevice, index: int, clock: Callable[[], float]) -> None:
        self._device = device
        self._regular = self._expanded = self._listed = False
        self.lane = Lane(self._work, f"gpu-{index}", clock)
        self.snapshot = no_values(index, "stale")
        self.processes: tuple[GpuProcess, ...] = ()
        self.listed_s: float | None = None

    def ask(self, regular: bool, expanded: bool, listed: bool) -> bool:
        if self.lane.waiting_s() > 0:
            return False
        self._regular, self._expanded, self._listed = regular, expanded, listed
        return self.lane.ask()

    def gather(self) -> None:
        """Take over what the lane has told; values that are not from now are marked."""
        late = self.lane.waiting_s() > STALE_S
        answer = self.lane.answer
        if answer is None or late:
            self.snapshot = _aged(self.snapshot, self.lane.waiting_s())
            return
        snapshot, found = answer
        # A reading without any answer has no values; the last ones say more.
        self.snapshot = _aged(self.snapshot) if snapshot.state == "stale" else snapshot
        if found is not None:
            self.listed_s, self.processes = found

    def _work(self) -> tuple[DeviceSnapshot, tuple[float, tuple[GpuProcess, ...]] | None]:
        listed = self._listed
        snapshot = self._device.read(self._regular, self._expanded)
        return snapshot, (time.time(), self._device.processes()) if listed else None


class GpuWatch:
    """Opens the driver, and asks every GPU once per `read`."""

    def __init__(self, driver: GpuDriver, clock: Callable[[], float] = time.monotonic) -> None:
        self._driver = driver
        self._clock = clock
        self._opening = Lane(driver.open, "gpu-driver", clock)
        self._opened_s: float | None = None
        self._facts: DriverFacts | None = None
        self._slots: list[_Slot] = []

    def read(self, regular: bool, expanded: Collection[int] = (), listed: bool | None = None) -> GpuReading:
        """The GPUs now, within about `ANSWER_S`.

        Args:
            regular: with the numbers of every second tick; else these are as they were.
            expanded: the GPUs that somebody looks at closely.
            listed: with the processes, else these are as they were; None is with the other numbers.
        """
        listed = regular if listed is None else listed
        now = self._clock()
        if not self._slots and not self._open(now):
            return self._unopened()
        asked = [slot for index, slot in enumerate(self._slots) if slot.ask(regular, index in expanded, listed)]
        for slot in asked:
            slot.lane.wait(now + ANSWER_S - self._clock())
        for slot in self._slots:
            slot.gather()
        assert self._facts is not None
        return GpuReading(
            driver=self._facts.driver,
            cuda=self._facts.cuda,
            devices=tuple(slot.snapshot for slot in self._slots),
            processes=tuple(process for slot in self._slots for process in slot.processes),
            process_note=self._facts.process_note,
            listed_s=tuple(slot.listed_s for slot in self._slots),
        )

    def _open(self, now: float) -> bool:
        if (self._opened_s is None or now - self._opened_s >= REOPEN_S) and self._opening.ask():
            self._opened_s = now
            self._opening.wait(ANSWER_S)
        if self._opening.waiting_s() == 0:
            self._facts = self._opening.answer
        if self._facts is None or self._facts.problem is not None:
            return False
        self._slots = [_Slot(self._driver.device(index), index, self._clock) for index in range(self._facts.gpu_count)]
        return True

    def _unopened(self) -> GpuReading:
        waiting_s = self._opening.waiting_s()
        if waiting_s > OPEN_PATIENCE_S:
            problem = (
                f"The GPUs cannot be read: the NVIDIA driver has not answered for {waiting_s:.0f} s; "
                "see `dmesg` for Xid errors, and reboot if `nvidia-smi` hangs too."
            )
            return GpuReading(problem=problem)
        if self._facts is None:
            return GpuReading()
        return GpuReading(self._facts.driver, self._facts.cuda, problem=self._facts.problem)


def _aged(snapshot: DeviceSnapshot, waiting_s: float = 0.0) -> DeviceSnapshot:
    if snapshot.state == "lost":
        return snapshot
    return replace(snapshot, state="stale", stale_s=float(round(waiting_s)) or None)
