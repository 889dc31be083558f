"""What every backend keeps: the live one on a scripted driver, and on a fake driver library, and the simulated one."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from gputune_tui.domain.telemetry import NodeSnapshot, SamplerSettings
from gputune_tui.telemetry.backend import Backend
from gputune_tui.telemetry.live import LiveNode
from gputune_tui.telemetry.nvml_driver import NvmlDriver
from gputune_tui.telemetry.process_reader import ProcessReader
from gputune_tui.telemetry.recording import Recorder
from gputune_tui.telemetry.replay import ReplayedNode
from gputune_tui.telemetry.simulated import FIRST_PID, SimulatedNode, simulated_snapshots
from tests.telemetry.contract import check
from tests.telemetry.scripted_pynvml import GIB, NVMLError, ScriptedGpu, ScriptedNvml, process
from tests.telemetry.snapshots import DEADLINE_S

NO_PARENT = 4_500_000


def scripted(gpus: int) -> LiveNode:
    nvml = ScriptedNvml(
        [ScriptedGpu.healthy(f"GPU-{i}", GetComputeRunningProcesses_v3=[process(FIRST_PID, GIB)]) for i in range(gpus)],
        Init=None if gpus else NVMLError(12),
    )
    return LiveNode(NvmlDriver(lambda: nvml), processes=ProcessReader(NO_PARENT))


def replayed(path: Path, gpus: int) -> ReplayedNode:
    """What a simulated node said for three seconds."""
    recorder = Recorder(path)
    for snapshot in islice(simulated_snapshots(1, gpus), 3):
        recorder.take(snapshot)
    recorder.close()
    return ReplayedNode(path)


@pytest.fixture(params=["live", "simulated", "replayed"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], Backend]:
    makers: dict[str, Callable[[int], Backend]] = {
        "live": scripted,
        "simulated": lambda gpus: SimulatedNode(1, gpus),
        "replayed": lambda gpus: replayed(tmp_path / "recording", gpus),
    }
    return makers[request.param]


def settled(backend: Backend) -> NodeSnapshot:
    """A snapshot in which everything that can be known is."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = backend.read(SamplerSettings())
        known = found.problem or (found.devices and all(d.state != "stale" for d in found.devices))
        if known and found.host.cpu_fraction is not None:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("gpus", [1, 3])
def test_a_node_with_gpus(make: Callable[[int], Backend], gpus: int) -> None:
    backend = make(gpus)
    found = settled(backend)
    check(found)
    assert [device.state for device in found.devices] == ["live"] * gpus
    assert len({device.uuid for device in found.devices}) == gpus
    assert found.driver
    backend.close()


def test_a_node_without_gpus_says_why_and_has_a_host(make: Callable[[int], Backend]) -> None:
    found = settled(make(0))
    check(found)
    assert (found.devices, found.processes) == ((), ())
    assert (found.problem or "").startswith("No NVIDIA GPU: ")
    assert "trials run on the CPU" in (found.problem or "")


def test_quiet_reads_the_numbers_and_keeps_the_processes(make: Callable[[int], Backend]) -> None:
    backend = make(2)
    before = settled(backend)
    quiet = backend.read(SamplerSettings(quiet=True))
    check(quiet)
    assert len(quiet.devices) == 2
    assert [row.pid for row in quiet.processes] == [row.pid for row in before.processes]


def test_without_gpus_on_order_only_the_host_is_read(make: Callable[[int], Backend]) -> None:
    backend = make(2)
    found = backend.read(SamplerSettings(gpus=False))
    check(found)
    assert (found.devices, found.problem, found.driver) == ((), None, None)
    assert len(settled(backend).devices) == 2


def test_only_the_simulated_node_says_so() -> None:
    assert SimulatedNode().read(SamplerSettings()).simulated
    assert not scripted(1).read(SamplerSettings()).simulated


def test_the_simulated_node_is_the_same_for_the_same_seed_and_time() -> None:
    first, again, other = (tuple(islice(simulated_snapshots(seed, gpus=4), 200)) for seed in (7, 7, 8))
    assert first == again
    assert first != other
    for snapshot in first:
        check(snapshot)
        assert snapshot.simulated
    assert len({snapshot.devices[0].util_fraction for snapshot in first}) > 10
    assert {"power cap"} == {word for snapshot in first for device in snapshot.devices for word in device.throttle}
    assert all(row.pid > 1 << 22 for snapshot in first for row in snapshot.processes)


def test_processes_are_listed_at_the_first_two_ticks_and_then_every_second_one() -> None:
    now = [100.0]
    nvml = ScriptedNvml([ScriptedGpu.healthy(GetComputeRunningProcesses_v3=[process(FIRST_PID, GIB)])])
    node = LiveNode(NvmlDriver(lambda: nvml), processes=ProcessReader(NO_PARENT), clock=lambda: now[0])
    for _ in range(10):
        node.read(SamplerSettings())
        now[0] += 1.0
    assert nvml.calls["GetComputeRunningProcesses_v3"] == 6
    for _ in range(10):
        assert node.read(SamplerSettings(quiet=True)).processes
        now[0] += 1.0
    assert nvml.calls["GetComputeRunningProcesses_v3"] == 6
    assert nvml.calls["GetUtilizationRates"] == 20


def test_the_time_of_a_reading_is_that_before_it_began() -> None:
    asked_s: list[float] = []

    def list_processes(*_: object) -> list[object]:
        asked_s.append(time.time())
        return []

    nvml = ScriptedNvml([ScriptedGpu.healthy(GetComputeRunningProcesses_v3=list_processes)])
    node = LiveNode(NvmlDriver(lambda: nvml), processes=ProcessReader(NO_PARENT))
    for _ in range(3):
        found = node.read(SamplerSettings(list_processes=True))
        if found.listed_s and found.listed_s[0] is not None:
            assert found.time_s <= found.listed_s[0] <= asked_s[-1]
    assert asked_s


def test_in_quiet_processes_are_listed_at_every_tick_where_that_is_asked_for_and_nothing_else_is() -> None:
    now = [100.0]
    nvml = ScriptedNvml([ScriptedGpu.healthy(GetComputeRunningProcesses_v3=[process(FIRST_PID, GIB)])])
    node = LiveNode(NvmlDriver(lambda: nvml), processes=ProcessReader(NO_PARENT), clock=lambda: now[0])
    for _ in range(4):
        node.read(SamplerSettings())
        now[0] += 1.0
    before = dict(nvml.calls)
    for _ in range(5):
        found = node.read(SamplerSettings(quiet=True, list_processes=True))
        assert [row.pid for row in found.processes] == [FIRST_PID]
        now[0] += 0.5
    asked = {name for name, count in nvml.calls.items() if count > before.get(name, 0)}
    quiet = node.read(SamplerSettings(quiet=True))
    assert [row.pid for row in quiet.processes] == [FIRST_PID]
    assert nvml.calls["GetComputeRunningProcesses_v3"] == before["GetComputeRunningProcesses_v3"] + 5
    assert "GetPcieThroughput" not in asked
