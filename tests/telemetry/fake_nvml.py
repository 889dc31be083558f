"""A pynvml that needs no driver: as much of the module as the probe calls, with faults on request."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest


class NVMLError(Exception):
    """As pynvml's: raised by every call that the driver refuses."""


@dataclass
class FakeGpu:
    """What one GPU answers; an exception stands for a refused call."""

    uuid: object = "GPU-1"
    name: object = "NVIDIA H200"
    total: object = 141 << 30
    free: object = 140 << 30
    lost: bool = False


@dataclass
class FakeNvml:
    """Builds the module; `calls` names what was called."""

    gpus: Sequence[FakeGpu] = ()
    init_error: NVMLError | None = None
    driver: object = "570.86.10"
    count_error: NVMLError | None = None
    shutdown_error: NVMLError | None = None
    calls: list[str] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        """Make `import pynvml` find this one."""
        module = types.ModuleType("pynvml")
        module.__dict__.update(
            NVMLError=NVMLError,
            nvmlInit=lambda: self._answer("init", self.init_error),
            nvmlShutdown=lambda: self._answer("shutdown", self.shutdown_error),
            nvmlSystemGetDriverVersion=lambda: self._answer("driver", self.driver),
            nvmlDeviceGetCount=lambda: self._answer("count", self.count_error or len(self.gpus)),
            nvmlDeviceGetHandleByIndex=self._handle,
            nvmlDeviceGetUUID=lambda gpu: self._answer("uuid", gpu.uuid),
            nvmlDeviceGetName=lambda gpu: self._answer("name", gpu.name),
            nvmlDeviceGetMemoryInfo=self._memory,
        )
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return self

    def _answer(self, call: str, value: object) -> object:
        self.calls.append(call)
        if isinstance(value, Exception):
            raise value
        return value

    def _handle(self, index: int) -> object:
        gpu = self.gpus[index]
        return self._answer("handle", NVMLError("GPU is lost") if gpu.lost else gpu)

    def _memory(self, gpu: FakeGpu) -> object:
        total = self._answer("memory", gpu.total)
        return SimpleNamespace(total=total, free=gpu.free)
