"""The NVML reader against a scripted driver: unknown is None, refusals are remembered, a lost card keeps its slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gputune_tui.domain.telemetry import DeviceSnapshot
from gputune_tui.telemetry.nvml_driver import DriverFacts, NvmlDriver
from gputune_tui.telemetry.nvml_processes import GpuProcess
from gputune_tui.telemetry.nvml_reader import LOST_AFTER, NvmlDevice
from gputune_tui.telemetry.nvml_words import GPU_IS_LOST, NOT_SUPPORTED, throttle_words
from tests.telemetry.scripted_pynvml import GIB, NVMLError, ScriptedGpu, ScriptedNvml, process

UNKNOWN_ERROR = 999


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(nvml: Any) -> DriverFacts:
    return NvmlDriver(lambda: nvml).open()


def device(gpu: ScriptedGpu, clock: Clock | None = None) -> tuple[NvmlDevice, ScriptedNvml]:
    nvml = ScriptedNvml([gpu])
    return NvmlDevice(nvml, 0, clock or Clock()), nvml


def test_a_healthy_gpu_is_read_whole() -> None:
    reader, _ = device(ScriptedGpu.healthy())
    assert reader.read() == DeviceSnapshot(
        index=0,
        uuid="GPU-a",
        name="NVIDIA H100",
        state="live",
        util_fraction=0.87,
        memory_used_bytes=60 * GIB,
        memory_total_bytes=80 * GIB,
        memory_reserved_bytes=GIB,
        power_w=512.345,
        power_limit_w=700.0,
        temperature_c=61.0,
        sm_clock_mhz=1755,
        throttle=("power cap",),
        memory_util_fraction=0.4,
        memory_clock_mhz=1755,
    )


def test_the_driver_tells_its_versions() -> None:
    assert opened(ScriptedNvml([ScriptedGpu.healthy()])) == DriverFacts("580.1", "13.2", 1, None)


def test_versions_that_are_refused_are_unknown() -> None:
    nvml = ScriptedNvml(
        [ScriptedGpu.healthy()],
        SystemGetDriverVersion=NVMLError(UNKNOWN_ERROR),
        SystemGetCudaDriverVersion_v2=NVMLError(13),
    )
    assert opened(nvml) == DriverFacts(None, None, 1, None)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (12, "libnvidia-ml.so.1 was not found"),
        (9, "modprobe"),
        (18, "reboot"),
        (4, "/dev/nvidia"),
        (UNKNOWN_ERROR, "NVML error 999"),
    ],
)
def test_a_driver_that_does_not_start_is_one_sentence(code: int, words: str) -> None:
    problem = opened(ScriptedNvml(Init=NVMLError(code))).problem
    assert problem is not None
    assert words in problem
    assert problem.startswith("No NVIDIA GPU: ")
    assert problem.endswith(".")
    assert "trials run on the CPU; " in problem


def test_no_device_and_no_module_are_sentences_too() -> None:
    assert "shows no device" in (opened(ScriptedNvml()).problem or "")
    assert "NVML error 999" in (opened(ScriptedNvml(DeviceGetCount=NVMLError(UNKNOWN_ERROR))).problem or "")
    assert "another package" in (opened(SimpleNamespace(NVMLError=NVMLError)).problem or "")

    def missing() -> Any:
        raise ImportError("pynvml")

    assert "nvidia-ml-py" in (NvmlDriver(missing).open().problem or "")


def test_what_is_not_supported_is_unknown_and_not_asked_again() -> None:
    refused = NVMLError(NOT_SUPPORTED)
    reader, nvml = device(ScriptedGpu.healthy(GetPowerUsage=refused, GetUtilizationRates=refused))
    for _ in range(5):
        found = reader.read()
        assert (found.state, found.power_w, found.util_fraction, found.power_limit_w) == ("live", None, None, 700.0)
    assert nvml.calls["GetPowerUsage"] == nvml.calls["GetUtilizationRates"] == 1
    assert nvml.calls["GetEnforcedPowerLimit"] == 5
    assert nvml.calls["DeviceGetHandleByIndex"] == nvml.calls["GetUUID"] == nvml.calls["GetName"] == 1


def test_any_other_error_is_asked_again() -> None:
    gpu = ScriptedGpu.healthy(GetPowerUsage=NVMLError(UNKNOWN_ERROR))
    reader, _ = device(gpu)
    assert reader.read().power_w is None
    gpu.answers["GetPowerUsage"] = 100_000
    assert reader.read().power_w == 100.0


def test_a_gpu_that_supports_nothing_lives() -> None:
    reader, _ = device(ScriptedGpu({"GetUUID": "GPU-a", "GetName": b"Tegra \xff"}))
    for _ in range(LOST_AFTER + 1):
        found = reader.read()
        assert (found.state, found.name, found.util_fraction, found.memory_total_bytes) == (
            "live",
            "Tegra �",
            None,
            None,
        )


def test_old_drivers_are_asked_in_the_old_way() -> None:
    def memory(version: int = 0) -> Any:
        return NVMLError(13) if version else SimpleNamespace(total=10, used=4, free=6)

    gpu = ScriptedGpu.healthy(GetMemoryInfo=memory, GetTemperatureV=NVMLError(13))
    del gpu.answers["GetCurrentClocksEventReasons"]
    reader, nvml = device(gpu)
    for _ in range(3):
        found = reader.read()
        assert (found.memory_used_bytes, found.memory_total_bytes, found.memory_reserved_bytes) == (4, 10, None)
        assert (found.temperature_c, found.throttle) == (60.0, ("power cap",))
    assert nvml.calls["GetMemoryInfo"] == 4
    assert nvml.calls["GetTemperatureV"] == 1


def test_a_part_without_memory_of_its_own_has_none() -> None:
    reader, _ = device(ScriptedGpu.healthy(GetMemoryInfo=SimpleNamespace(total=0, used=0, free=0, reserved=0)))
    found = reader.read()
    assert (found.memory_used_bytes, found.memory_total_bytes, found.memory_reserved_bytes) == (None, None, None)


def test_an_idle_gpu_is_not_throttled() -> None:
    reader, _ = device(ScriptedGpu.healthy(GetUtilizationRates=SimpleNamespace(gpu=0, memory=0)))
    assert reader.read().throttle == ()


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x1, ()),
        (0x2 | 0x100, ()),
        (0x4, ("power cap",)),
        (0x20, ("thermal",)),
        (0x48, ("thermal",)),
        (0x88, ("power brake",)),
        (0x8, ("hardware slowdown",)),
        (0x34, ("power cap", "thermal", "sync boost")),
    ],
)
def test_throttle_reasons_in_words(bits: int, words: tuple[str, ...]) -> None:
    assert throttle_words(bits) == words


def test_a_gpu_lost_at_the_start_keeps_its_slot_and_may_come_back() -> None:
    clock, gpu = Clock(), ScriptedGpu.healthy()
    gpu.lost = GPU_IS_LOST
    reader, nvml = device(gpu, clock)
    assert reader.read().state == "lost"
    assert reader.read().uuid is None
    assert nvml.calls["DeviceGetHandleByIndex"] == 1
    gpu.lost = None
    clock.now += 5.0
    assert reader.read().state == "live"


def test_a_gpu_lost_later_keeps_its_name_and_is_asked_ever_less() -> None:
    clock, gpu = Clock(), ScriptedGpu.healthy()
    reader, nvml = device(gpu, clock)
    assert reader.read().state == "live"
    gpu.lost = GPU_IS_LOST
    lost = reader.read()
    assert (lost.state, lost.uuid, lost.name, lost.power_w) == ("lost", "GPU-a", "NVIDIA H100", None)
    assert reader.processes() == ()
    for _ in range(300):
        clock.now += 1.0
        assert reader.read().state == "lost"
    assert 5 <= nvml.calls["DeviceGetHandleByUUID"] <= 10
    gpu.lost = None
    clock.now += 60.0
    assert reader.read().state == "live"


def test_silence_counts_as_lost_only_after_a_while() -> None:
    gpu = ScriptedGpu.healthy()
    reader, _ = device(gpu)
    reader.read()
    gpu.lost = UNKNOWN_ERROR
    assert [reader.read().state for _ in range(LOST_AFTER)] == ["stale"] * (LOST_AFTER - 1) + ["lost"]


def test_processes_of_both_lists_are_merged() -> None:
    gpu = ScriptedGpu.healthy(
        GetComputeRunningProcesses_v3=[process(10, GIB), process(11, None), process(12, (1 << 64) - 1)],
        GetMPSComputeRunningProcesses_v3=[process(10, 3 * GIB), process(13, 0), process(11, GIB)],
    )
    reader, _ = device(gpu)
    assert reader.processes() == ()
    reader.read()
    assert reader.processes() == (
        GpuProcess(10, 0, 3 * GIB, "C+M"),
        GpuProcess(11, 0, GIB, "C+M"),
        GpuProcess(12, 0, None),
        GpuProcess(13, 0, 0, "M"),
    )


def test_older_process_lists_are_used_where_the_newest_is_missing() -> None:
    gpu = ScriptedGpu.healthy(
        GetComputeRunningProcesses_v3=NVMLError(13),
        GetComputeRunningProcesses_v2=[process(7, GIB)],
        GetMPSComputeRunningProcesses_v3=NVMLError(NOT_SUPPORTED),
    )
    reader, nvml = device(gpu)
    reader.read()
    assert reader.processes() == reader.processes() == (GpuProcess(7, 0, GIB),)
    assert nvml.calls["GetComputeRunningProcesses_v3"] == 1


def test_nothing_that_blocks_for_milliseconds_is_ever_called() -> None:
    reader, nvml = device(ScriptedGpu.healthy(GetPcieThroughput=1, GetFieldValues=[], GetFanSpeed=30))
    reader.read()
    reader.processes()
    assert not {"GetPcieThroughput", "GetFieldValues", "GetFanSpeed"} & set(nvml.calls)
