"""One GPU's questions to NVML: which functions ask what, and what the driver does not support is asked once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gputune_tui.telemetry.nvml_words import FOR_GOOD


@dataclass(frozen=True)
class Call:
    """A function of pynvml and what follows the handle."""

    name: str
    arguments: tuple[int, ...] = ()


MEMORY_V2 = 0x02000028
"""nvmlMemory_v2_t: its size (40) and version, as NVML wants structs to be named (nvml.h)."""
_SM, _MEMORY = 1, 2
"""nvmlClockType_t."""
_SLOWDOWN = 1
"""nvmlTemperatureThresholds_t."""
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0
"""nvmlMemoryErrorType_t and nvmlEccCounterType_t."""

# The first of each that the driver supports is asked. Left out, because they block for milliseconds and more:
# PCIe throughput (the byte counters tell it), average power (field 185).
UTILIZATION = (Call("nvmlDeviceGetUtilizationRates"),)
MEMORY = (Call("nvmlDeviceGetMemoryInfo", (MEMORY_V2,)), Call("nvmlDeviceGetMemoryInfo"))
POWER = (Call("nvmlDeviceGetPowerUsage"),)
POWER_LIMIT = (Call("nvmlDeviceGetEnforcedPowerLimit"),)
TEMPERATURE = (Call("nvmlDeviceGetTemperatureV", (0,)), Call("nvmlDeviceGetTemperature", (0,)))
SM_CLOCK = (Call("nvmlDeviceGetClockInfo", (_SM,)),)
MEMORY_CLOCK = (Call("nvmlDeviceGetClockInfo", (_MEMORY,)),)
PSTATE = (Call("nvmlDeviceGetPerformanceState"),)
THROTTLE = (Call("nvmlDeviceGetCurrentClocksEventReasons"), Call("nvmlDeviceGetCurrentClocksThrottleReasons"))

UUID = (Call("nvmlDeviceGetUUID"),)
NAME = (Call("nvmlDeviceGetName"),)
PCI = (Call("nvmlDeviceGetPciInfo"),)
SLOWDOWN = (Call("nvmlDeviceGetTemperatureThreshold", (_SLOWDOWN,)),)
PCIE_MAX_GENERATION = (Call("nvmlDeviceGetMaxPcieLinkGeneration"),)
PCIE_MAX_WIDTH = (Call("nvmlDeviceGetMaxPcieLinkWidth"),)

PCIE_GENERATION = (Call("nvmlDeviceGetCurrPcieLinkGeneration"),)
PCIE_WIDTH = (Call("nvmlDeviceGetCurrPcieLinkWidth"),)
FAN = (Call("nvmlDeviceGetFanSpeed"),)
ENCODER = (Call("nvmlDeviceGetEncoderUtilization"),)
DECODER = (Call("nvmlDeviceGetDecoderUtilization"),)
ENERGY = (Call("nvmlDeviceGetTotalEnergyConsumption"),)

MIG_MODE = (Call("nvmlDeviceGetMigMode"),)
MIG_COUNT = (Call("nvmlDeviceGetMaxMigDeviceCount"),)
MIG_HANDLE = Call("nvmlDeviceGetMigDeviceHandleByIndex")
GPU_INSTANCE = (Call("nvmlDeviceGetGpuInstanceId"),)
COMPUTE_INSTANCE = (Call("nvmlDeviceGetComputeInstanceId"),)
ECC_MODE = (Call("nvmlDeviceGetEccMode"),)
ECC_CORRECTED = (Call("nvmlDeviceGetTotalEccErrors", (_CORRECTED, _VOLATILE)),)
ECC_UNCORRECTED = (Call("nvmlDeviceGetTotalEccErrors", (_UNCORRECTED, _VOLATILE)),)
PERSISTENCE = (Call("nvmlDeviceGetPersistenceMode"),)
COMPUTE_MODE = (Call("nvmlDeviceGetComputeMode"),)

COMPUTE_PROCESSES = (
    Call("nvmlDeviceGetComputeRunningProcesses_v3"),
    Call("nvmlDeviceGetComputeRunningProcesses_v2"),
)
GRAPHICS_PROCESSES = (
    Call("nvmlDeviceGetGraphicsRunningProcesses_v3"),
    Call("nvmlDeviceGetGraphicsRunningProcesses_v2"),
)
MPS_PROCESSES = (
    Call("nvmlDeviceGetMPSComputeRunningProcesses_v3"),
    Call("nvmlDeviceGetMPSComputeRunningProcesses_v2"),
)
PROCESS_UTILIZATION = (Call("nvmlDeviceGetProcessUtilization"),)

_FIELD_VALUES = (Call("nvmlDeviceGetFieldValues"),)
NVLINK_COUNT, NVLINK_TX_KIB, NVLINK_RX_KIB, PCIE_TX_BYTES, PCIE_RX_BYTES = 91, 138, 139, 197, 198
"""NVML_FI_DEV_...: links of the GPU, data over them since boot, and bytes over PCIe since boot."""
ALL_LINKS = 0xFFFFFFFF
_UNSIGNED_INT, _DOUBLE, _SIGNED_INT = 1, 0, 5
"""nvmlValueType_t; the others are 64 bits wide."""


class Answers:
    """Asks about one handle and remembers what is refused for good. One thread at a time."""

    def __init__(self, nvml: Any, handle: Any = None) -> None:
        self.nvml = nvml
        self.handle = handle
        self.errors: list[int] = []
        """Codes of the failures since `begin` that may pass."""
        self.answered = 0
        """Answers since `begin`; to be told that something is not supported is one."""
        self._refused: set[Call | int] = set()

    def begin(self) -> None:
        """Count anew."""
        self.errors, self.answered = [], 0

    def reconsider(self) -> None:
        """Ask everything again: the GPU has been set up differently."""
        self._refused.clear()

    def refused(self, calls: tuple[Call, ...]) -> bool:
        """Whether it is known that none of them is supported."""
        return all(call in self._refused for call in calls)

    def ask(self, calls: tuple[Call, ...], *arguments: Any) -> Any:
        """The answer of the first function that the driver supports; None if none does, or it failed this time."""
        for call in calls:
            if call in self._refused:
                continue
            function = getattr(self.nvml, call.name, None)
            try:
                if function is not None:
                    answer = as_text(function(self.handle, *call.arguments, *arguments))
                    self.answered += 1
                    return answer
            except UnicodeDecodeError:
                pass
            except self.nvml.NVMLError as error:
                if error.value not in FOR_GOOD:
                    self.errors.append(error.value)
                    return None
                self.answered += 1
            self._refused.add(call)
        return None

    def fields(self, ids: Iterable[int | tuple[int, int]]) -> Mapping[int, int]:
        """Field values by ID in one call; a pair is an ID and its scope. Those that are not known are left out."""
        wanted = [entry for entry in ids if _id(entry) not in self._refused]
        found = {}
        for value in (self.ask(_FIELD_VALUES, wanted) if wanted else None) or ():
            if value.nvmlReturn == 0:
                found[int(value.fieldId)] = _number(value)
            elif value.nvmlReturn in FOR_GOOD:
                self._refused.add(int(value.fieldId))
        return found


def _id(entry: int | tuple[int, int]) -> int:
    return entry if isinstance(entry, int) else entry[0]


def _number(value: Any) -> int:
    kind = value.valueType
    if kind == _DOUBLE:
        return int(value.value.dVal)
    if kind in (_UNSIGNED_INT, _SIGNED_INT):
        return int(value.value.uiVal)
    return int(value.value.ullVal)


def as_text(value: Any) -> Any:
    """Bytes as text, whatever they hold; all else as it is."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
