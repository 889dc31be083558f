"""The sampling process on a fake driver library: NVIDIA's own Python binding, unmodified, and real hangs and crashes.

Needs a C compiler and `GPUTUNE_FAKE_NVML`, a folder whose Makefile builds `lib/libnvidia-ml.so.1` and which reads its
scenario from the file that FAKE_NVML_SCENARIO names.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputune_tui.telemetry.collector import Collector
from tests.telemetry.collecting import close_all, find, states
from tests.telemetry.snapshots import DEADLINE_S

H100 = (
    "name=NVIDIA H100 80GB HBM3 mem_total_mib=81559 mem_used_mib=60000 mem_reserved_mib=551 util=87 temp=55 "
    "power_w=450 power_limit_w=700 sm_clock=1755 throttle=0x4"
)
TWO = f"gpu 0-1 {H100}\nproc 0-1 pid=@1 mem_mib=59000 type=C\n"
MIB = 1 << 20
Watch = Callable[..., Collector]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = os.environ.get("GPUTUNE_FAKE_NVML")
    if not source:
        pytest.skip("GPUTUNE_FAKE_NVML does not name the folder of a fake driver library")
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("there is no C compiler or no make to build the fake driver library with")
    folder = tmp_path_factory.mktemp("driver") / "source"
    shutil.copytree(source, folder)
    subprocess.run(["make", "-s", "all", "old"], cwd=folder, check=True, timeout=DEADLINE_S)
    return folder


@pytest.fixture
def watch(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Starts a collector whose sampler finds the fake driver with the scenario given."""
    made: list[Collector] = []

    def begin(scenario: str, library: str = "lib", stale_after_s: float | None = None) -> Collector:
        path = tmp_path / "scenario"
        path.write_text(scenario)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(built / library))
        monkeypatch.setenv("FAKE_NVML_SCENARIO", str(path))
        monkeypatch.setenv("FAKE_NVML_PIDS", str(os.getpid()))
        collector = Collector(interval_s=0.25, stale_after_s=stale_after_s)
        made.append(collector)
        collector.start()
        return collector

    yield begin
    close_all(made)


def test_two_gpus(watch: Watch) -> None:
    collector = watch(TWO)
    found = find(
        collector, lambda f: states(f) == ["live", "live"] and any(row.cpu_fraction is not None for row in f.processes)
    )
    device = found.devices[0]
    assert (device.memory_total_bytes, device.memory_used_bytes) == (81559 * MIB, 60000 * MIB)
    assert device.memory_reserved_bytes == 551 * MIB
    assert (device.util_fraction, device.power_w, device.power_limit_w) == (0.87, 450.0, 700.0)
    assert (device.temperature_c, device.sm_clock_mhz, device.throttle) == (55.0, 1755, ("power cap",))
    assert len({d.uuid for d in found.devices}) == 2
    assert found.driver
    assert found.cuda
    assert [(row.pid, row.device_index, row.gpu_memory_bytes) for row in found.processes if row.pid == os.getpid()] == [
        (os.getpid(), 0, 59000 * MIB),
        (os.getpid(), 1, 59000 * MIB),
    ]
    assert "pytest" in found.processes[0].command
    assert collector.problem is None


def test_a_driver_of_before_memory_v2_counts_the_reserved_part_as_used(watch: Watch) -> None:
    device = find(watch(TWO, library="lib-old"), lambda f: states(f) == ["live", "live"]).devices[0]
    assert (device.memory_used_bytes, device.memory_reserved_bytes) == (60551 * MIB, None)
    assert (device.temperature_c, device.throttle) == (55.0, ("power cap",))


def test_what_a_laptop_does_not_tell_is_unknown(watch: Watch) -> None:
    collector = watch(f"gpu 0 {H100} power_w=na power_limit_w=na util=na throttle=na temp=unknown\n")
    found = find(collector, lambda f: states(f) == ["live"])
    device = found.devices[0]
    assert (device.power_w, device.power_limit_w, device.util_fraction) == (None, None, None)
    assert (device.temperature_c, device.throttle, device.sm_clock_mhz) == (None, (), 1755)


def test_a_gpu_lost_at_the_start_keeps_its_slot(watch: Watch) -> None:
    found = find(watch(f"gpu 0-2 {H100}\ngpu 1 state=lost\n"), lambda f: states(f) == ["live", "lost", "live"])
    assert [device.index for device in found.devices] == [0, 1, 2]


def test_a_gpu_lost_later_keeps_its_name(watch: Watch) -> None:
    collector = watch(f"gpu 0-1 {H100}\ngpu 0 state=step:2:ok:lost\n")
    before = find(collector, lambda f: states(f) == ["live", "live"])
    after = find(collector, lambda f: states(f) == ["lost", "live"])
    assert after.devices[0].uuid == before.devices[0].uuid is not None
    assert after.devices[0].power_w is None


def test_a_call_that_hangs_makes_one_gpu_stale_and_nothing_else(watch: Watch) -> None:
    collector = watch(f"gpu 0-2 {H100}\ngpu 1 state=step:2:ok:hang\n", stale_after_s=DEADLINE_S)
    find(collector, lambda f: states(f) == ["live"] * 3)
    pid = collector.pid
    found = find(collector, lambda f: states(f) == ["live", "stale", "live"])
    assert found.devices[1].power_w == 450.0
    later = find(collector, lambda f: f.time_s > found.time_s + 1.0)
    assert states(later) == ["live", "stale", "live"]
    assert later.host.cpu_fraction is not None
    assert (collector.pid, collector.problem) == (pid, None)


def test_a_start_that_hangs_is_a_sentence_and_the_host_is_read(watch: Watch) -> None:
    collector = watch(f"init_latency_us=600000000\ngpu 0 {H100}\n", stale_after_s=DEADLINE_S)
    found = find(collector, lambda f: f.problem)
    assert "has not answered for" in (found.problem or "")
    assert found.host.cpu_fraction is not None


def test_a_library_that_crashes_takes_the_sampler_alone(watch: Watch) -> None:
    collector = watch(f"gpu 0-1 {H100}\ngpu 1 state=step:2:ok:crash\n", stale_after_s=DEADLINE_S)
    find(collector, lambda f: states(f) == ["live", "live"])
    first = collector.pid
    stale = find(collector, lambda f: states(f) == ["stale", "stale"])
    assert "SIGSEGV" in (collector.problem or "")
    assert stale.devices[0].power_w == 450.0
    host_only = find(collector, lambda f: f.time_s > stale.time_s)
    assert collector.pid != first
    assert states(host_only) == ["stale", "stale"]
    find(collector, lambda f: states(f) == ["live", "live"])
    assert collector.problem is None


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("init=lib_mismatch\n", "reboot"),
        ("init=no_permission\n", "/dev/nvidia"),
        ("init=driver_not_loaded\n", "modprobe"),
        ("cuda=13000\n", "shows no device"),
    ],
)
def test_a_driver_without_gpus_is_one_sentence(watch: Watch, scenario: str, words: str) -> None:
    collector = watch(scenario)
    found = find(collector, lambda f: f.problem and f.host.cpu_fraction is not None)
    assert words in (found.problem or "")
    assert (found.devices, collector.problem) == ((), None)


def test_no_library_is_one_sentence(watch: Watch) -> None:
    if ctypes.util.find_library("nvidia-ml"):
        pytest.skip("this machine has a driver library of its own")
    found = find(watch("", library="nowhere"), lambda f: f.problem)
    assert "libnvidia-ml.so.1 was not found" in (found.problem or "")
