"""A pynvml without a driver for the tick-by-tick reader: every answer of every GPU can be set or refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30


class NVMLError(Exception):
    """As pynvml's: `value` is the return code."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def process(pid: int, size: int | None) -> SimpleNamespace:
    """An entry of a process list."""
    return SimpleNamespace(pid=pid, usedGpuMemory=size)


@dataclass
class ScriptedGpu:
    """Answers by function name without "nvmlDevice"; an exception is raised, a callable is called."""

    answers: dict[str, Any] = field(default_factory=dict)
    lost: int | None = None
    """A return code for every call."""

    @staticmethod
    def healthy(uuid: str = "GPU-a", **changes: Any) -> ScriptedGpu:
        """A busy H100; `changes` replace answers."""
        return ScriptedGpu(
            {
                "GetUUID": uuid,
                "GetName": "NVIDIA H100",
                "GetUtilizationRates": SimpleNamespace(gpu=87, memory=40),
                "GetMemoryInfo": SimpleNamespace(total=80 * GIB, used=60 * GIB, free=19 * GIB, reserved=GIB),
                "GetPowerUsage": 512_345,
                "GetEnforcedPowerLimit": 700_000,
                "GetTemperatureV": 61,
                "GetTemperature": 60,
                "GetClockInfo": 1755,
                "GetCurrentClocksEventReasons": 0x4,
                "GetCurrentClocksThrottleReasons": 0x4,
                "GetComputeRunningProcesses_v3": [],
                "GetMPSComputeRunningProcesses_v3": [],
                **changes,
            }
        )


class ScriptedNvml:
    """Stands for the module; a function of a GPU exists where any GPU has an answer for it."""

    NVMLError = NVMLError

    def __init__(self, gpus: Sequence[ScriptedGpu] = (), **system: Any) -> None:
        """`system`: answers of nvmlInit, SystemGetDriverVersion and so on, by name without "nvml"."""
        self.gpus = gpus
        self.calls: Counter[str] = Counter()
        self.system = {
            "Init": None,
            "SystemGetDriverVersion": "580.1",
            "SystemGetCudaDriverVersion_v2": 13020,
            "DeviceGetCount": len(gpus),
            **system,
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        key = name.removeprefix("nvml")
        if key in self.system:
            return lambda: self._answer(key, self.system[key])
        if key == "DeviceGetHandleByIndex":
            return lambda index: self._handle(key, self.gpus[index])
        if key == "DeviceGetHandleByUUID":
            return lambda uuid: self._handle(key, next(g for g in self.gpus if g.answers["GetUUID"] == uuid))
        function = key.removeprefix("Device")
        if not any(function in gpu.answers for gpu in self.gpus):
            raise AttributeError(name)
        return lambda gpu, *arguments: self._of(gpu, function, arguments)

    def _handle(self, key: str, gpu: ScriptedGpu) -> ScriptedGpu:
        self._answer(key, None if gpu.lost is None else NVMLError(gpu.lost))
        return gpu

    def _of(self, gpu: ScriptedGpu, function: str, arguments: tuple[int, ...]) -> Any:
        if gpu.lost is not None:
            return self._answer(function, NVMLError(gpu.lost))
        answer = gpu.answers.get(function, NVMLError(3))
        return self._answer(function, answer(*arguments) if callable(answer) else answer)

    def _answer(self, key: str, value: Any) -> Any:
        self.calls[key] += 1
        if isinstance(value, Exception):
            raise value
        return value
