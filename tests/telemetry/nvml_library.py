"""The driver library as NVIDIA's Python binding sees it, in Python: the real pynvml runs on top of it, unmodified.

`python -m tests.telemetry.nvml_library SCENARIO` is the sampling process on such a library; a scenario is a JSON object
of `Library`'s fields, its `gpus` objects of `Gpu`'s.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

SUCCESS, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE = 0, 3, 4, 6, 7
LOST, FIELD_OK = 15, 0
MIB = 1 << 20
NONE = 0xFFFFFFFF
SCALARS = {
    "nvmlDeviceGetPowerUsage": "power_mw",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_mw",
    "nvmlDeviceGetPerformanceState": "pstate",
    "nvmlDeviceGetCurrentClocksEventReasons": "throttle",
    "nvmlDeviceGetCurrPcieLinkGeneration": "pcie_generation",
    "nvmlDeviceGetCurrPcieLinkWidth": "pcie_width",
    "nvmlDeviceGetMaxPcieLinkGeneration": "pcie_max_generation",
    "nvmlDeviceGetMaxPcieLinkWidth": "pcie_max_width",
    "nvmlDeviceGetFanSpeed": "fan",
    "nvmlDeviceGetTotalEnergyConsumption": "energy_mj",
    "nvmlDeviceGetPersistenceMode": "persistence",
    "nvmlDeviceGetComputeMode": "compute_mode",
    "nvmlDeviceGetMaxMigDeviceCount": "mig_places",
    "nvmlDeviceGetGpuInstanceId": "gpu_instance",
    "nvmlDeviceGetComputeInstanceId": "compute_instance",
}
"""Functions that write one number: what they are told by."""
PAIRS = {
    "nvmlDeviceGetEncoderUtilization": ("encoder", 0),
    "nvmlDeviceGetDecoderUtilization": ("decoder", 0),
    "nvmlDeviceGetMigMode": ("mig_mode", None),
    "nvmlDeviceGetEccMode": ("ecc_mode", None),
}
BUSY: Mapping[str, Any] = {
    "util": 87, "memory_util": 40, "total_mib": 81559, "used_mib": 60000, "reserved_mib": 551, "power_mw": 450_000,
    "power_limit_mw": 700_000, "temperature": 55, "slowdown": 87, "sm_clock": 1755, "memory_clock": 2619, "pstate": 0,
    "throttle": 0x4, "pcie_generation": 5, "pcie_width": 16, "pcie_max_generation": 5, "pcie_max_width": 16, "fan": 30,
    "encoder": 3, "decoder": 4, "energy_mj": 7_200_000, "persistence": 1, "compute_mode": 0, "mig_mode": 0,
    "ecc_mode": 1, "ecc_corrected": 2, "ecc_uncorrected": 0, "pcie_bytes_per_s": 1 << 30, "nvlinks": 18,
    "nvlink_kib_per_s": 1 << 20,
}  # fmt: skip
"""A GPU that answers everything."""


@dataclass
class Gpu:
    """Answers by name; what is missing is not supported."""

    values: dict[str, Any] = field(default_factory=dict)
    name: str = "NVIDIA H100 80GB HBM3"
    processes: list[dict[str, Any]] = field(default_factory=list)
    """`pid`, `mib`, `kind` ("C", "G" or "M"), `sm`, `instance`."""
    slices: list[dict[str, Any]] = field(default_factory=list)
    """MIG instances: values of each."""
    state: str = "ok"
    """"lost", "hang" or "crash" from `after_s` on."""
    after_s: float = 0.0
    latency_s: float = 0.0
    index: int = -1
    """Given by the library."""


class Library:
    """Stands in the place of what `ctypes.CDLL` returns."""

    def __init__(self, gpus: Sequence[Gpu] = (), init: int = SUCCESS, latency_s: float = 0.0) -> None:
        self.gpus = gpus
        for index, gpu in enumerate(gpus):
            gpu.index = index
        self.init = init
        self.latency_s = latency_s
        self.calls: Counter[str] = Counter()
        self._begin_s = time.monotonic()
        self._gates: dict[str, Callable[..., int]] = {
            "nvmlInitWithFlags": lambda flags: self.init,
            "nvmlShutdown": lambda: SUCCESS,
            "nvmlSystemGetDriverVersion": lambda buffer, size: _put(buffer, "580.159.04"),
            "nvmlSystemGetCudaDriverVersion_v2": lambda out: _set(out, 13000),
            "nvmlDeviceGetCount_v2": lambda out: _set(out, len(self.gpus)),
            "nvmlDeviceGetHandleByIndex_v2": lambda index, out: self._handle(index.value, out),
            "nvmlDeviceGetHandleByUUID": lambda uuid, out: self._handle(int(uuid.value.rpartition(b"-")[2]), out),
        }

    def __getattr__(self, name: str) -> Callable[..., int]:
        gate: Callable[..., int]
        if name in self._gates:
            gate = self._gates[name]
        else:
            answer = getattr(self, f"_{name}", None) if not name.startswith("_") else None
            if answer is None and name not in SCALARS and name not in PAIRS:
                raise AttributeError(name)

            def gate(handle: Any, *rest: Any) -> int:
                gpu, values = self._of(handle)
                code = self._condition(gpu)
                if code:
                    return code
                return answer(gpu, values, *rest) if answer is not None else _numbers(name, values, rest)

        def counted(*arguments: Any) -> int:
            self.calls[name] += 1
            time.sleep(self.latency_s) if self.latency_s else None
            return int(gate(*arguments))

        return counted

    def _handle(self, index: int, out: Any) -> int:
        code = self._condition(self.gpus[index])
        return code or _point(out, index + 1)

    def _of(self, handle: Any) -> tuple[Gpu, dict[str, Any]]:
        number = ctypes.cast(handle, ctypes.c_void_p).value or 0
        index, place = (number - 1) % 1000, (number - 1) // 1000
        gpu = self.gpus[index]
        return gpu, gpu.values if not place else gpu.slices[place - 1]

    def _condition(self, gpu: Gpu) -> int:
        if gpu.latency_s:
            time.sleep(gpu.latency_s)
        if gpu.state != "ok" and time.monotonic() - self._begin_s >= gpu.after_s:
            if gpu.state == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            while gpu.state == "hang":
                time.sleep(3600)
            return LOST
        return SUCCESS

    def _nvmlDeviceGetUUID(self, gpu: Gpu, values: dict[str, Any], buffer: Any, size: Any) -> int:
        kind = "GPU" if values is gpu.values else f"MIG-{values['gpu_instance']}"
        return _put(buffer, f"{kind}-{gpu.index}")

    def _nvmlDeviceGetName(self, gpu: Gpu, values: dict[str, Any], buffer: Any, size: Any) -> int:
        return _put(buffer, gpu.name if values is gpu.values else f"{gpu.name} MIG 1g.10gb")

    def _nvmlDeviceGetPciInfo_v3(self, gpu: Gpu, values: dict[str, Any], out: Any) -> int:
        out._obj.busId = b"00000000:17:00.0"
        return SUCCESS

    def _nvmlDeviceGetUtilizationRates(self, gpu: Gpu, values: dict[str, Any], out: Any) -> int:
        if "util" not in values:
            return NOT_SUPPORTED
        out._obj.gpu, out._obj.memory = values["util"], values.get("memory_util", 0)
        return SUCCESS

    def _nvmlDeviceGetMemoryInfo_v2(self, gpu: Gpu, values: dict[str, Any], out: Any) -> int:
        if "total_mib" not in values:
            return NOT_SUPPORTED
        memory, reserved = out._obj, values.get("reserved_mib", 0)
        memory.total, memory.used, memory.reserved = (
            values["total_mib"] * MIB,
            values["used_mib"] * MIB,
            reserved * MIB,
        )
        return SUCCESS

    _nvmlDeviceGetMemoryInfo = _nvmlDeviceGetMemoryInfo_v2

    def _nvmlDeviceGetTemperature(self, gpu: Gpu, values: dict[str, Any], sensor: Any, out: Any) -> int:
        return _number(values, "temperature", out)

    def _nvmlDeviceGetTemperatureThreshold(self, gpu: Gpu, values: dict[str, Any], kind: Any, out: Any) -> int:
        return _number(values, "slowdown", out)

    def _nvmlDeviceGetClockInfo(self, gpu: Gpu, values: dict[str, Any], kind: Any, out: Any) -> int:
        return _number(values, {1: "sm_clock", 2: "memory_clock"}[_plain(kind)], out)

    def _nvmlDeviceGetTotalEccErrors(self, gpu: Gpu, values: dict[str, Any], kind: Any, counter: Any, out: Any) -> int:
        return _number(values, ("ecc_corrected", "ecc_uncorrected")[_plain(kind)], out)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, values: dict[str, Any], place: Any, out: Any) -> int:
        place = _plain(place)
        if place >= len(gpu.slices) or not gpu.slices[place]:
            return NOT_FOUND
        return _point(out, gpu.index + 1 + 1000 * (place + 1))

    def _nvmlDeviceGetFieldValues(self, gpu: Gpu, values: dict[str, Any], count: Any, out: Any) -> int:
        since_s = time.monotonic() - self._begin_s
        rates = {197: ("pcie_bytes_per_s", 1), 198: ("pcie_bytes_per_s", 2), 138: ("nvlink_kib_per_s", 1)}
        rates[139] = rates[138]
        for entry in out._obj:
            name, factor = rates.get(entry.fieldId, ("nvlinks", None))
            entry.nvmlReturn = SUCCESS if name in values else NOT_SUPPORTED
            if name in values:
                entry.valueType = 3 if factor else 1
                if factor:
                    entry.value.ullVal = int(values[name] * factor * since_s)
                else:
                    entry.value.uiVal = values[name]
        return SUCCESS

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: Gpu, values: dict[str, Any], count: Any, out: Any) -> int:
        return _list([p for p in gpu.processes if "C" in p.get("kind", "C")], count, out)

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: Gpu, values: dict[str, Any], count: Any, out: Any) -> int:
        return _list([p for p in gpu.processes if "G" in p.get("kind", "C")], count, out)

    def _nvmlDeviceGetMPSComputeRunningProcesses_v3(
        self, gpu: Gpu, values: dict[str, Any], count: Any, out: Any
    ) -> int:
        return _list([p for p in gpu.processes if "M" in p.get("kind", "C")], count, out)

    def _nvmlDeviceGetProcessUtilization(
        self, gpu: Gpu, values: dict[str, Any], out: Any, count: Any, since: Any
    ) -> int:
        active = [p for p in gpu.processes if p.get("sm")]
        if not active:
            return NOT_FOUND
        if out is None:
            count._obj.value = len(active)
            return INSUFFICIENT_SIZE
        for entry, process in zip(out, active, strict=True):
            entry.pid, entry.smUtil = process["pid"], process["sm"]
        return SUCCESS


def _list(processes: Sequence[dict[str, Any]], count: Any, out: Any) -> int:
    if out is None:
        count._obj.value = len(processes)
        return INSUFFICIENT_SIZE if processes else SUCCESS
    for entry, process in zip(out, processes, strict=False):
        entry.pid, entry.gpuInstanceId = process["pid"], process.get("instance", NONE)
        size = process.get("mib")
        entry.usedGpuMemory = (1 << 64) - 1 if size is None else size * MIB
    count._obj.value = len(processes)
    return SUCCESS


def _numbers(name: str, values: dict[str, Any], rest: Sequence[Any]) -> int:
    if name in SCALARS:
        return _number(values, SCALARS[name], rest[0])
    key, second = PAIRS[name]
    if key not in values:
        return NOT_SUPPORTED
    _set(rest[0], values[key])
    return _set(rest[1], values[key] if second is None else second)


def _number(values: dict[str, Any], key: str, out: Any) -> int:
    return _set(out, values[key]) if key in values else NOT_SUPPORTED


def _set(out: Any, value: int) -> int:
    out._obj.value = value
    return SUCCESS


def _put(buffer: Any, text: str) -> int:
    buffer.value = text.encode()
    return SUCCESS


def _point(out: Any, number: int) -> int:
    ctypes.memmove(ctypes.addressof(out._obj), ctypes.byref(ctypes.c_void_p(number)), ctypes.sizeof(ctypes.c_void_p))
    return SUCCESS


def _plain(value: Any) -> int:
    return int(getattr(value, "value", value))


def scenario(library: Mapping[str, Any]) -> Library:
    """The library of a scenario."""
    return Library(**{**library, "gpus": [Gpu(**gpu) for gpu in library.get("gpus", ())]})


if __name__ == "__main__":
    from gputune_tui.telemetry import sampler

    pynvml.nvmlLib = scenario(json.loads(sys.argv[1]))
    sampler.main([])
