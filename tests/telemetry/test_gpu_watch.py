"""The watch over all GPUs: calls that never return or come late touch their own GPU alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from gputune_tui.domain.telemetry import DeviceSnapshot
from gputune_tui.telemetry import gpu_watch
from gputune_tui.telemetry.gpu_watch import OPEN_PATIENCE_S, REOPEN_S, STALE_S, GpuReading, GpuWatch
from gputune_tui.telemetry.lanes import Lane
from gputune_tui.telemetry.nvml_driver import DriverFacts
from gputune_tui.telemetry.nvml_processes import GpuProcess

DEADLINE_S = 30.0
GOOD = DriverFacts("580.1", "13.0", 3, None)


def values(index: int, power_w: float | None = 100.0) -> DeviceSnapshot:
    return DeviceSnapshot(index, f"GPU-{index}", "H100", "live", 0.5, 1, 2, 0, power_w, 700.0, 50.0, 1000, ())


class Clock:
    """Real time, moved ahead by the test."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


@dataclass
class FakeDevice:
    """One GPU; while `gate` is closed its calls hang."""

    snapshot: DeviceSnapshot
    gate: threading.Event = field(default_factory=threading.Event)
    fails: bool = False

    def read(self, regular: bool, expanded: bool) -> DeviceSnapshot:
        self.gate.wait()
        if self.fails:
            raise ValueError("not foreseen")
        return self.snapshot

    def processes(self) -> tuple[GpuProcess, ...]:
        return (GpuProcess(100 + self.snapshot.index, self.snapshot.index, 1),)


@dataclass
class FakeDriver:
    """A driver with GPUs 0 to 2."""

    facts: DriverFacts = GOOD
    gate: threading.Event = field(default_factory=threading.Event)
    devices: list[FakeDevice] = field(default_factory=lambda: [FakeDevice(values(i)) for i in range(3)])
    opened: int = 0

    def open(self) -> DriverFacts:
        self.opened += 1
        self.gate.wait()
        return self.facts

    def device(self, index: int) -> FakeDevice:
        return self.devices[index]


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    made = FakeDriver()
    gates = [made.gate, *(device.gate for device in made.devices)]
    for gate in gates:
        gate.set()
    yield made
    for gate in gates:
        gate.set()


def until(watch: GpuWatch, wanted: Callable[[GpuReading], bool]) -> GpuReading:
    deadline = time.monotonic() + DEADLINE_S
    while not wanted(found := watch.read(regular=True)):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def states(reading: GpuReading) -> list[str]:
    return [device.state for device in reading.devices]


def test_a_healthy_driver_is_read_at_the_first_tick(driver: FakeDriver) -> None:
    found = until(GpuWatch(driver), lambda reading: states(reading) == ["live"] * 3)
    assert (found.driver, found.cuda, found.problem) == ("580.1", "13.0", None)
    assert found.devices == tuple(values(i) for i in range(3))
    assert [process.pid for process in found.processes] == [100, 101, 102]


def test_without_processes_these_stay_as_they_were(driver: FakeDriver) -> None:
    watch = GpuWatch(driver)
    assert watch.read(regular=False).processes == ()
    until(watch, lambda reading: len(reading.processes) == 3)
    assert len(watch.read(regular=False).processes) == 3


def test_a_list_has_the_age_of_its_question_and_not_of_the_tick(driver: FakeDriver) -> None:
    watch = GpuWatch(driver)
    began_s = time.time()
    first = until(watch, lambda reading: None not in reading.listed_s and len(reading.processes) == 3)
    assert all(listed_s is not None and began_s <= listed_s <= time.time() for listed_s in first.listed_s)
    driver.devices[1].gate.clear()
    later_s = time.time()
    found = until(watch, lambda reading: min(s or 0.0 for s in (reading.listed_s[0], reading.listed_s[2])) >= later_s)
    assert (found.listed_s[1] or 0.0) < later_s
    assert watch.read(regular=False).listed_s[1] == found.listed_s[1]
    driver.devices[1].gate.set()
    until(watch, lambda reading: (reading.listed_s[1] or 0.0) >= later_s)


def test_a_call_that_hangs_makes_its_own_gpu_stale_with_the_last_values(driver: FakeDriver) -> None:
    clock = Clock()
    watch = GpuWatch(driver, clock)
    until(watch, lambda reading: states(reading) == ["live"] * 3)
    driver.devices[1].gate.clear()
    watch.read(regular=True)
    clock.ahead_s += STALE_S
    driver.devices[2].snapshot = values(2, 222.0)
    found = until(watch, lambda reading: states(reading) == ["live", "stale", "live"])
    assert replace(found.devices[1], stale_s=None) == replace(values(1), state="stale")
    assert until(watch, lambda reading: reading.devices[2].power_w == 222.0)
    assert (found.devices[1].stale_s or 0) >= STALE_S
    driver.devices[1].gate.set()
    until(watch, lambda reading: states(reading) == ["live"] * 3)


def test_a_gpu_that_never_answered_has_a_slot(driver: FakeDriver) -> None:
    driver.devices[0].gate.clear()
    found = until(GpuWatch(driver), lambda reading: states(reading) == ["stale", "live", "live"])
    assert (found.devices[0].index, found.devices[0].uuid, found.devices[0].power_w) == (0, None, None)


def test_a_reading_without_any_answer_keeps_the_last_values(driver: FakeDriver) -> None:
    watch = GpuWatch(driver)
    until(watch, lambda reading: states(reading) == ["live"] * 3)
    driver.devices[0].snapshot = replace(values(0, None), state="stale")
    assert until(watch, lambda reading: states(reading)[0] == "stale").devices[0].power_w == 100.0
    driver.devices[0].snapshot = replace(values(0, None), state="lost")
    assert until(watch, lambda reading: states(reading)[0] == "lost").devices[0].power_w is None


def test_a_failure_nobody_foresaw_makes_the_gpu_stale_and_may_pass(driver: FakeDriver) -> None:
    watch = GpuWatch(driver)
    until(watch, lambda reading: states(reading) == ["live"] * 3)
    driver.devices[0].fails = True
    until(watch, lambda reading: states(reading)[0] == "stale")
    driver.devices[0].fails = False
    until(watch, lambda reading: states(reading)[0] == "live")


def test_a_driver_that_does_not_open_says_so_after_a_while(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_watch, "ANSWER_S", 0.01)
    clock = Clock()
    driver.gate.clear()
    watch = GpuWatch(driver, clock)
    assert watch.read(regular=True) == GpuReading()
    clock.ahead_s += OPEN_PATIENCE_S
    assert "has not answered for" in (watch.read(regular=True).problem or "")
    clock.ahead_s += REOPEN_S
    watch.read(regular=True)
    assert driver.opened == 1
    driver.gate.set()
    until(watch, lambda reading: states(reading) == ["live"] * 3)


def test_a_driver_that_was_refused_is_tried_again_now_and_then(driver: FakeDriver) -> None:
    clock = Clock()
    driver.facts = DriverFacts(None, None, 0, "No NVIDIA GPU: because.")
    watch = GpuWatch(driver, clock)
    assert until(watch, lambda reading: reading.problem is not None).problem == "No NVIDIA GPU: because."
    for _ in range(5):
        watch.read(regular=True)
    assert driver.opened == 1
    driver.facts = GOOD
    clock.ahead_s += REOPEN_S
    until(watch, lambda reading: len(reading.devices) == 3)
    assert driver.opened == 2


def test_a_lane_takes_one_question_at_a_time() -> None:
    gate = threading.Event()
    lane = Lane(lambda: gate.wait(DEADLINE_S), "test")
    assert lane.waiting_s() == 0.0
    assert lane.ask()
    assert not lane.ask()
    assert not lane.wait(0.0)
    gate.set()
    assert lane.wait(DEADLINE_S)
    assert lane.answer is True
