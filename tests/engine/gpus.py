"""A GPU that the test moves, in the place of the sampling process."""

from __future__ import annotations

import time
from dataclasses import replace

from gputune_tui.domain.telemetry import DeviceSnapshot, NodeSnapshot, ProcessSnapshot
from gputune_tui.engine.device_watch import GpuNode
from gputune_tui.telemetry.nvml import GpuInfo
from tests.telemetry.snapshots import device, node

UUID = "GPU-0"
GPU = GpuInfo(0, UUID, "H100", 80 << 30, 70 << 30)


def row(pid: int, memory_bytes: int | None = 1 << 30, **fields: object) -> ProcessSnapshot:
    """A process on the GPU."""
    plain = ProcessSnapshot(pid, 0, "alice", memory_bytes, 0.5, 1 << 20, "python train.py", kind="C")
    return replace(plain, **fields)  # type: ignore[arg-type]


class ScriptedSource:
    """Says the node anew at every question, as it is then."""

    def __init__(self) -> None:
        self.device: DeviceSnapshot = device(0)
        self.processes: tuple[ProcessSnapshot, ...] = ()
        self.quiet: list[bool] = []
        self.log: list[str] = []
        self.answers = True
        self.listed_s: tuple[float | None, ...] = ()

    def start(self) -> None:
        self.log.append("start")

    def list_processes(self) -> None:
        self.log.append("list")

    def close(self) -> None:
        self.log.append("close")

    def set_quiet(self, quiet: bool) -> None:
        self.quiet.append(quiet)

    def wait(self, timeout_s: float) -> None:
        time.sleep(min(timeout_s, 0.005))

    def poll(self) -> NodeSnapshot | None:
        if not self.answers:
            return None
        return replace(node(time.time()), devices=(self.device,), processes=self.processes, listed_s=self.listed_s)


def scripted_node() -> tuple[GpuNode, ScriptedSource]:
    """A node over a source of its own, read once."""
    source = ScriptedSource()
    found = GpuNode(UUID, lambda: source)
    for _ in found.refresh():
        pass
    return found, source
