"""The real node as a backend: host, GPUs and processes put together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from gputune_tui.domain.telemetry import DeviceSnapshot, NodeSnapshot, ProcessSnapshot, SamplerSettings
from gputune_tui.telemetry.gpu_watch import GpuDriver, GpuReading, GpuWatch
from gputune_tui.telemetry.host_reader import HostReader, MachineMemory
from gputune_tui.telemetry.nvml import load_pynvml
from gputune_tui.telemetry.nvml_driver import NvmlDriver
from gputune_tui.telemetry.process_reader import ProcessReader

REGULAR_PERIOD_S = 1.9
"""Every second tick of one second: process lists and byte counters cost a hundred times what the numbers cost."""
FIRST_REGULARS = 2
"""Rates need two readings, and nobody wants to wait for them."""
MORE_GPUS_THAN_ANY = range(1 << 10)


class LiveNode:
    """This machine. The driver is opened at the first `read` that may ask it."""

    def __init__(
        self,
        driver: GpuDriver | None = None,
        host: HostReader | None = None,
        processes: ProcessReader | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = GpuWatch(driver or NvmlDriver(load_pynvml), clock)
        self._host = host or HostReader()
        self._processes = processes or ProcessReader()
        self._clock = clock
        self._rows: tuple[ProcessSnapshot, ...] = ()
        self._regular_s = 0.0
        self._regulars = 0

    def read(self, order: SamplerSettings) -> NodeSnapshot:
        """The node now; what is not cheap every second tick, and in quiet as it was."""
        now, time_s = self._clock(), time.time()
        regular = not order.quiet and (self._regulars < FIRST_REGULARS or now - self._regular_s >= REGULAR_PERIOD_S)
        expanded = MORE_GPUS_THAN_ANY if order.expand_all else order.expanded
        listed = regular or order.list_processes
        gpu = self._watch.read(regular, expanded, listed) if order.gpus else GpuReading()
        if listed:
            self._rows = self._processes.read(gpu.processes)
        if regular:
            self._regular_s = now
            self._regulars += bool(gpu.devices or gpu.problem or not order.gpus)
        host, memory = self._host.read_with_memory()
        return NodeSnapshot(
            time_s=time_s,
            host=host,
            driver=gpu.driver,
            cuda=gpu.cuda,
            devices=tuple(_with_memory(device, memory) for device in gpu.devices),
            processes=self._rows,
            problem=gpu.problem,
            process_note=gpu.process_note,
            listed_s=gpu.listed_s,
        )

    def close(self) -> None:
        """Nothing: threads are daemons, and shutting the driver down may hang as any of its calls."""


def _with_memory(device: DeviceSnapshot, memory: MachineMemory) -> DeviceSnapshot:
    """A GPU without memory of its own shares the machine's; page cache is as good as free to it."""
    if not device.memory_is_unified or device.state == "lost":
        return device
    used = memory.total_bytes - memory.available_bytes
    return replace(device, memory_used_bytes=used, memory_total_bytes=memory.total_bytes)
