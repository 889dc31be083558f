"""The real node as a backend: host, GPUs and processes put together."""

from __future__ import annotations

import time
from collections.abc import Callable

from gputune_tui.domain.telemetry import NodeSnapshot, ProcessSnapshot
from gputune_tui.telemetry.gpu_watch import GpuDriver, GpuReading, GpuWatch
from gputune_tui.telemetry.host_reader import HostReader
from gputune_tui.telemetry.nvml import load_pynvml
from gputune_tui.telemetry.nvml_reader import NvmlDriver
from gputune_tui.telemetry.process_reader import ProcessReader

PROCESS_PERIOD_S = 1.9
"""Every second tick of one second: the lists cost a hundred times what the numbers cost."""


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
        self._rows_s: float | None = None

    def read(self, quiet: bool, gpus: bool = True) -> NodeSnapshot:
        """The node now; processes every second tick, in quiet as they were."""
        now = self._clock()
        with_processes = not quiet and (self._rows_s is None or now - self._rows_s >= PROCESS_PERIOD_S)
        gpu = self._watch.read(with_processes) if gpus else GpuReading()
        if with_processes:
            self._rows, self._rows_s = self._processes.read(gpu.processes), now
        return NodeSnapshot(
            time_s=time.time(),
            host=self._host.read(),
            driver=gpu.driver,
            cuda=gpu.cuda,
            devices=gpu.devices,
            processes=self._rows,
            problem=gpu.problem,
        )

    def close(self) -> None:
        """Nothing: threads are daemons, and shutting the driver down may hang as any of its calls."""
