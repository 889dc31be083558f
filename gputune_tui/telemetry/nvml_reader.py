"""GPUs through NVML, tick after tick: what is not supported is not asked again, a lost GPU keeps its slot."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gputune_tui.domain.telemetry import DeviceSnapshot, DeviceState
from gputune_tui.telemetry.nvml_words import FOR_GOOD, GPU_IS_LOST, throttle_words, why_no_gpu

MEMORY_V2 = 0x02000028
"""nvmlMemory_v2_t: its size (40) and version, as NVML wants structs to be named (nvml.h)."""
CLOCK_SM = 1
SENSOR_GPU = 0
NOT_A_SIZE = 1 << 63
"""Where the driver does not tell a process's memory it answers with all bits set."""
LOST_AFTER = 3
"""Readings in a row without any answer."""
RETRY_FIRST_S, RETRY_LAST_S = 5.0, 60.0
"""A lost GPU is asked again after the first, then twice as long, until the last."""


@dataclass(frozen=True)
class Call:
    """A function of pynvml and what follows the handle."""

    name: str
    arguments: tuple[int, ...] = ()


# The first of each that the driver supports is asked. Left out, because they block for milliseconds and more:
# PCIe throughput, average power (field 185), fan speed.
UTILIZATION = (Call("nvmlDeviceGetUtilizationRates"),)
MEMORY = (Call("nvmlDeviceGetMemoryInfo", (MEMORY_V2,)), Call("nvmlDeviceGetMemoryInfo"))
POWER = (Call("nvmlDeviceGetPowerUsage"),)
POWER_LIMIT = (Call("nvmlDeviceGetEnforcedPowerLimit"),)
TEMPERATURE = (Call("nvmlDeviceGetTemperatureV", (SENSOR_GPU,)), Call("nvmlDeviceGetTemperature", (SENSOR_GPU,)))
SM_CLOCK = (Call("nvmlDeviceGetClockInfo", (CLOCK_SM,)),)
THROTTLE = (Call("nvmlDeviceGetCurrentClocksEventReasons"), Call("nvmlDeviceGetCurrentClocksThrottleReasons"))
COMPUTE_PROCESSES = (
    Call("nvmlDeviceGetComputeRunningProcesses_v3"),
    Call("nvmlDeviceGetComputeRunningProcesses_v2"),
)
MPS_PROCESSES = (
    Call("nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    Call("nvmlDeviceGetMPSComputeRunningProcesses_v2"),
)


@dataclass(frozen=True)
class DriverFacts:
    """What holds until the driver is opened anew."""

    driver: str | None
    cuda: str | None
    gpu_count: int
    problem: str | None
    """Why there is no GPU, one sentence."""


@dataclass(frozen=True)
class GpuProcess:
    """A process as the driver knows it."""

    pid: int
    device_index: int
    gpu_memory_bytes: int | None


class NvmlDriver:
    """NVML as this process has it open. The calls block for as long as the driver likes."""

    def __init__(self, load: Callable[[], Any]) -> None:
        """`load` gives the module pynvml."""
        self._load = load
        self._nvml: Any = None

    def open(self) -> DriverFacts:
        """Initialise NVML; whatever stands in the way becomes `problem`."""
        try:
            self._nvml = self._load()
            self._nvml.nvmlInit()
        except ImportError:
            return _none("the Python module pynvml is missing", "install nvidia-ml-py")
        except AttributeError:
            return _none("another package named pynvml hides NVIDIA's", "reinstall nvidia-ml-py and remove the other")
        except self._nvml.NVMLError as error:
            return _none(*why_no_gpu(error.value))
        driver = self.ask("nvmlSystemGetDriverVersion")
        version = self.ask("nvmlSystemGetCudaDriverVersion_v2") or self.ask("nvmlSystemGetCudaDriverVersion")
        cuda = f"{version // 1000}.{version % 1000 // 10}" if version else None
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            return _none(*why_no_gpu(error.value))
        if count == 0:
            none = _none(
                "the driver shows no device",
                "see what `nvidia-smi -L` says and whether the job or container was given a GPU",
            )
            return DriverFacts(driver, cuda, 0, none.problem)
        return DriverFacts(driver, cuda, count, None)

    def device(self, index: int) -> NvmlDevice:
        """The GPU of that number; asks nothing yet."""
        return NvmlDevice(self._nvml, index)

    def ask(self, name: str) -> Any:
        """A question about the system; None where it is not answered."""
        try:
            return _text(getattr(self._nvml, name)())
        except (self._nvml.NVMLError, AttributeError, UnicodeDecodeError):
            return None


class NvmlDevice:
    """One GPU. One thread at a time."""

    def __init__(self, nvml: Any, index: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._index = index
        self._clock = clock
        self._handle: Any = None
        self._uuid: str | None = None
        self._name: str | None = None
        self._refused: set[Call] = set()
        self._errors: list[int] = []
        self._answers = 0
        self._silent_reads = 0
        self._retry_s = RETRY_FIRST_S
        self._lost_until_s: float | None = None

    def read(self) -> DeviceSnapshot:
        """The cheap numbers now, some ten microseconds on a healthy driver."""
        if self._lost_until_s is not None and self._clock() < self._lost_until_s:
            return self._without_values()
        self._errors, self._answers = [], 0
        found = self._values() if self._open() else None
        if self._answers or not self._errors:
            self._silent_reads, self._retry_s, self._lost_until_s = 0, RETRY_FIRST_S, None
        else:
            self._silent_reads += 1
            if GPU_IS_LOST in self._errors or self._silent_reads >= LOST_AFTER:
                self._handle = None
                self._lost_until_s = self._clock() + self._retry_s
                self._retry_s = min(2 * self._retry_s, RETRY_LAST_S)
        return found if found is not None and self._silent_reads == 0 else self._without_values()

    def processes(self) -> tuple[GpuProcess, ...]:
        """Processes that compute on it, with the most memory that any list tells; MPS clients are listed apart."""
        if self._handle is None or self._lost_until_s is not None:
            return ()
        found: dict[int, int | None] = {}
        for calls in (COMPUTE_PROCESSES, MPS_PROCESSES):
            for process in self._ask(calls) or ():
                told = process.usedGpuMemory
                size = None if told is None or told >= NOT_A_SIZE else int(told)
                known = found.get(process.pid)
                found[int(process.pid)] = size if known is None else max(known, size or 0)
        return tuple(GpuProcess(pid, self._index, size) for pid, size in found.items())

    def _open(self) -> bool:
        if self._handle is not None:
            return True
        try:
            # Once known it is found by UUID: another card may have taken its number.
            if self._uuid is not None:
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)
            else:
                self._handle = self._nvml.nvmlDeviceGetHandleByIndex(self._index)
        except self._nvml.NVMLError as error:
            self._errors.append(error.value)
            return False
        self._uuid = self._uuid or self._ask((Call("nvmlDeviceGetUUID"),))
        self._name = self._name or self._ask((Call("nvmlDeviceGetName"),))
        return True

    def _values(self) -> DeviceSnapshot:
        utilization, memory = self._ask(UTILIZATION), self._ask(MEMORY)
        power_mw, limit_mw = self._ask(POWER), self._ask(POWER_LIMIT)
        temperature, clock, reasons = self._ask(TEMPERATURE), self._ask(SM_CLOCK), self._ask(THROTTLE)
        util = None if utilization is None else utilization.gpu / 100
        if memory is not None and not memory.total:
            memory = None  # unified-memory parts have no memory of their own to tell about
        return DeviceSnapshot(
            index=self._index,
            uuid=self._uuid,
            name=self._name,
            state="live",
            util_fraction=util,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            memory_reserved_bytes=None if memory is None else _optional_int(getattr(memory, "reserved", None)),
            power_w=None if power_mw is None else power_mw / 1000,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            temperature_c=None if temperature is None else float(temperature),
            sm_clock_mhz=_optional_int(clock),
            throttle=() if reasons is None or util == 0 else throttle_words(reasons),
        )

    def _without_values(self) -> DeviceSnapshot:
        state: DeviceState = "stale" if self._lost_until_s is None else "lost"
        return DeviceSnapshot(
            self._index, self._uuid, self._name, state, None, None, None, None, None, None, None, None, ()
        )

    def _ask(self, calls: tuple[Call, ...]) -> Any:
        """The answer of the first function that the driver supports; None if none does, or it failed this time."""
        for call in calls:
            if call in self._refused:
                continue
            function = getattr(self._nvml, call.name, None)
            try:
                if function is not None:
                    answer = _text(function(self._handle, *call.arguments))
                    self._answers += 1
                    return answer
            except UnicodeDecodeError:
                pass
            except self._nvml.NVMLError as error:
                if error.value not in FOR_GOOD:
                    self._errors.append(error.value)
                    return None
                self._answers += 1
            self._refused.add(call)
        return None


def _none(cause: str, remedy: str) -> DriverFacts:
    return DriverFacts(None, None, 0, f"No NVIDIA GPU: {cause}, so trials run on the CPU; {remedy}.")


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
