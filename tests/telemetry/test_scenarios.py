"""The sampling process and its client on nodes of every kind: NVIDIA's own binding over a driver library in Python."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest

from gputune_tui.telemetry.collector import Collector
from tests.telemetry.collecting import close_all, find, states
from tests.telemetry.nvml_library import BUSY, MIB, Gpu
from tests.telemetry.snapshots import DEADLINE_S

Watch = Callable[..., Collector]
LAPTOP = {name: BUSY[name] for name in ("util", "memory_util", "total_mib", "used_mib", "temperature", "sm_clock")}
CUT = {name: value for name, value in BUSY.items() if name not in ("util", "memory_util", "encoder", "decoder")}
SLICE = {"compute_instance": 0, "total_mib": 9728, "used_mib": 9100}
ME = os.getpid()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Starts a collector over a library with these GPUs."""
    made: list[Collector] = []

    def begin(*gpus: Gpu, stale_after_s: float | None = None, **library: Any) -> Collector:
        scenario = json.dumps({**library, "gpus": [asdict(gpu) for gpu in gpus]})
        command = (sys.executable, "-m", "tests.telemetry.nvml_library", scenario)
        collector = Collector(command, interval_s=0.25, stale_after_s=stale_after_s)
        made.append(collector)
        collector.expand((), all_of_them=True)
        collector.start()
        return collector

    yield begin
    close_all(made)


def busy(**changes: Any) -> Gpu:
    return Gpu(dict(BUSY), **changes)


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_any_number_of_gpus(watch: Watch, count: int) -> None:
    found = find(watch(*[busy() for _ in range(count)]), lambda f: states(f) == ["live"] * count)
    assert [device.uuid for device in found.devices] == [f"GPU-{index}" for index in range(count)]


def test_everything_that_a_gpu_tells(watch: Watch) -> None:
    found = find(watch(busy()), lambda f: states(f) == ["live"] and f.devices[0].nvlink_rx_bytes_per_s)
    device = found.devices[0]
    assert (device.util_fraction, device.memory_util_fraction, device.sm_clock_mhz) == (0.87, 0.4, 1755)
    assert (device.memory_used_bytes, device.memory_total_bytes) == (60000 * MIB, 81559 * MIB)
    assert (device.memory_reserved_bytes, device.memory_is_unified) == (551 * MIB, False)
    assert (device.power_w, device.power_limit_w, device.temperature_c) == (450.0, 700.0, 55.0)
    assert (device.slowdown_temperature_c, device.memory_clock_mhz, device.pstate) == (87.0, 2619, 0)
    assert (device.throttle, device.pci_bus) == (("power cap",), "00000000:17:00.0")
    assert (device.pcie_generation, device.pcie_width, device.pcie_max_generation) == (5, 16, 5)
    assert device.pcie_rx_bytes_per_s == pytest.approx(2 << 30, rel=0.3)
    assert device.pcie_tx_bytes_per_s == pytest.approx(1 << 30, rel=0.3)
    assert (device.fan_fraction, device.encoder_fraction, device.decoder_fraction) == (0.3, 0.03, 0.04)
    assert (device.ecc_enabled, device.ecc_corrected, device.ecc_uncorrected) == (True, 2, 0)
    assert (device.persistence, device.compute_mode, device.mig_enabled) == (True, "default", False)
    assert (device.nvlink_links, device.energy_j) == (18, 7200.0)
    assert device.nvlink_tx_bytes_per_s == pytest.approx(1 << 30, rel=0.3)


def test_processes_with_their_kind_and_share(watch: Watch) -> None:
    processes = [
        {"pid": ME, "mib": 900, "kind": "CG", "sm": 37},
        {"pid": 4_500_000, "mib": None, "kind": "M"},
    ]
    found = find(watch(busy(processes=processes)), lambda f: any(row.cpu_fraction is not None for row in f.processes))
    mine, missing = (next(row for row in found.processes if row.pid == pid) for pid in (ME, 4_500_000))
    assert (mine.kind, mine.sm_fraction, mine.gpu_memory_bytes) == ("C+G", 0.37, 900 * MIB)
    assert not mine.is_foreign
    assert mine.started is not None
    assert (mine.running_s or 0) > 0
    assert mine.parent_pid == os.getppid()
    assert (missing.kind, missing.sm_fraction, missing.gpu_memory_bytes) == ("M", 0.0, None)
    assert missing.is_foreign or missing.is_gone


def test_mig_instances_have_memory_and_no_share(watch: Watch) -> None:
    gpu = Gpu(
        {**CUT, "mig_mode": 1, "mig_places": 7},
        slices=[{**SLICE, "gpu_instance": 7}, {}, {**SLICE, "gpu_instance": 9}],
        processes=[{"pid": ME, "mib": 9000, "instance": 7}],
    )
    found = find(watch(gpu), lambda f: f.devices and len(f.devices[0].mig) == 2 and f.processes)
    device = found.devices[0]
    assert (device.util_fraction, device.mig_enabled) == (None, True)
    assert [instance.gpu_instance for instance in device.mig] == [7, 9]
    assert {instance.memory_used_bytes for instance in device.mig} == {9100 * MIB}
    row = next(row for row in found.processes if row.device_index is not None)
    assert (row.gpu_instance, row.sm_fraction) == (7, None)


def test_what_a_laptop_does_not_tell_is_unknown(watch: Watch) -> None:
    device = find(watch(Gpu(dict(LAPTOP), name="NVIDIA GeForce MX450")), lambda f: states(f) == ["live"]).devices[0]
    unknown = ("power_w", "power_limit_w", "fan_fraction", "pcie_width", "ecc_enabled", "mig_enabled", "energy_j")
    assert {getattr(device, name) for name in unknown} == {None}
    assert (device.util_fraction, device.throttle) == (0.87, ())


def test_unified_memory_is_the_machines(watch: Watch) -> None:
    gpu = Gpu({name: value for name, value in BUSY.items() if not name.endswith("_mib")}, name="NVIDIA GB10")
    found = find(watch(gpu), lambda f: states(f) == ["live"])
    device = found.devices[0]
    assert device.memory_is_unified
    assert device.memory_total_bytes == found.host.memory_total_bytes
    assert 0 < (device.memory_used_bytes or 0) < (device.memory_total_bytes or 0)


def test_a_gpu_lost_at_the_start_keeps_its_slot(watch: Watch) -> None:
    found = find(watch(busy(), busy(state="lost"), busy()), lambda f: states(f) == ["live", "lost", "live"])
    assert [device.index for device in found.devices] == [0, 1, 2]


def test_a_gpu_lost_later_keeps_its_name(watch: Watch) -> None:
    collector = watch(busy(state="lost", after_s=1.5), busy())
    before = find(collector, lambda f: states(f) == ["live", "live"])
    after = find(collector, lambda f: states(f) == ["lost", "live"])
    assert after.devices[0].uuid == before.devices[0].uuid == "GPU-0"
    assert after.devices[0].power_w is None


@pytest.mark.parametrize(
    ("init", "words"), [(18, "reboot"), (4, "/dev/nvidia"), (9, "modprobe"), (12, "libnvidia-ml"), (0, "no device")]
)
def test_a_node_without_gpus_is_one_sentence(watch: Watch, init: int, words: str) -> None:
    found = find(watch(init=init), lambda f: f.problem and f.host.cpu_fraction is not None)
    assert words in (found.problem or "")
    assert (found.devices, found.problem.count(". ") if found.problem else 0) == ((), 0)


def test_one_slow_gpu_leaves_the_others_alone(watch: Watch) -> None:
    collector = watch(busy(), busy(latency_s=0.1), busy())
    first = find(collector, lambda f: len(f.devices) == 3 and f.devices[0].state == f.devices[2].state == "live")
    later = find(collector, lambda f: f.time_s > first.time_s + 1.0)
    assert (later.devices[0].state, later.devices[2].state) == ("live", "live")
    find(collector, lambda f: f.devices[1].state == "live")


def test_a_slow_driver_is_still_read(watch: Watch) -> None:
    collector = watch(*[busy() for _ in range(8)], latency_s=0.003)
    assert find(collector, lambda f: states(f) == ["live"] * 8)


def test_a_call_that_hangs_makes_one_gpu_stale_and_the_process_stays(watch: Watch) -> None:
    collector = watch(busy(), busy(state="hang", after_s=1.5), stale_after_s=DEADLINE_S)
    find(collector, lambda f: states(f) == ["live", "live"])
    pid = collector.pid
    found = find(collector, lambda f: states(f) == ["live", "stale"] and f.devices[1].stale_s)
    assert found.devices[1].power_w == 450.0
    assert (collector.pid, collector.problem) == (pid, None)


def test_a_process_that_stops_is_replaced(watch: Watch) -> None:
    collector = watch(busy(), stale_after_s=1.0)
    find(collector, lambda f: states(f) == ["live"])
    pid = collector.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    begin_s = time.monotonic()
    find(collector, lambda f: states(f) == ["stale"])
    assert time.monotonic() - begin_s < DEADLINE_S
    assert "did not answer" in (collector.problem or "")
    find(collector, lambda f: f.host.cpu_fraction is not None)
    assert collector.pid not in (None, pid)


def test_a_library_that_crashes_takes_the_process_alone(watch: Watch) -> None:
    collector = watch(busy(), busy(state="crash", after_s=1.5), stale_after_s=DEADLINE_S)
    find(collector, lambda f: states(f) == ["live", "live"])
    first = collector.pid
    stale = find(collector, lambda f: states(f) == ["stale", "stale"])
    assert "SIGSEGV" in (collector.problem or "")
    assert stale.devices[0].power_w == 450.0
    find(collector, lambda f: f.time_s > stale.time_s)
    assert collector.pid != first
