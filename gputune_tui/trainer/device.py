"""The devices a trial can run on, behind one interface: cpu and cuda here, a scripted one in the tests."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch

from gputune_tui.trainer.faults import DeviceUnavailable


class Device(Protocol):
    """What timing needs of a device. Marks are taken without waiting for it; their distance is read after a sync."""

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors go."""

    @property
    def name(self) -> str | None:
        """Model, as the driver tells it."""

    @property
    def uuid(self) -> str | None:
        """The driver's UUID of a GPU."""

    def synchronize(self) -> None:
        """Wait until everything queued so far is done."""

    def mark(self) -> Any:
        """A point on the device's own timeline."""

    def seconds_between(self, start: Any, end: Any) -> float:
        """Seconds from one mark to another; only after `synchronize`."""


class CpuDevice:
    """The CPU: operators run when they are called, so a mark is a clock reading."""

    kind = "cpu"
    uuid: str | None = None

    def __init__(self, threads: int | None = None) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.torch_device = torch.device("cpu")

    @property
    def name(self) -> str | None:
        """The processor's model name."""
        try:
            with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as info:
                return next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), None)
        except OSError:
            return None

    def synchronize(self) -> None:
        """Nothing is queued."""

    mark = staticmethod(time.perf_counter)
    """Seconds on the monotonic clock."""

    def seconds_between(self, start: float, end: float) -> float:
        """Plain difference."""
        return end - start


class CudaDevice:
    """A CUDA GPU: a mark is a timing event on the current stream, as torch documents for timing without a sync."""

    kind = "cuda"

    def __init__(self, spec: str) -> None:
        if not torch.cuda.is_available():
            raise DeviceUnavailable(f"torch sees no CUDA device for {spec}; check the driver, or use --device cpu")
        self.torch_device = torch.device("cuda" if spec == "cuda" else spec)
        torch.cuda.set_device(self.torch_device)
        # The first allocation creates the context, which is overhead of the process and no part of the model.
        torch.empty(1, device=self.torch_device)
        self._properties = torch.cuda.get_device_properties(self.torch_device)

    @property
    def name(self) -> str | None:
        """The GPU's model."""
        return str(self._properties.name)

    @property
    def uuid(self) -> str | None:
        """The GPU's UUID where this torch tells it."""
        uuid = getattr(self._properties, "uuid", None)
        return f"GPU-{uuid}" if uuid is not None else None

    def synchronize(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize(self.torch_device)

    def mark(self) -> torch.cuda.Event:
        """Record a timing event; the host does not wait."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """CUDA tells milliseconds."""
        return float(start.elapsed_time(end)) / 1e3


def open_device(spec: str, threads: int | None) -> Device:
    """The device that a job names.

    Raises:
        DeviceUnavailable: torch cannot use it.
    """
    return CpuDevice(threads) if spec == "cpu" else CudaDevice(spec)
