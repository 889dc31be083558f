"""Snapshots of nodes of every kind."""

from __future__ import annotations

from dataclasses import replace

from gputune_tui.domain.telemetry import DeviceSnapshot, HostSnapshot, NodeSnapshot, ProcessSnapshot
from tests.telemetry.snapshots import HOST, device

GIB = 1 << 30
PROBLEM = (
    "No NVIDIA GPU: libnvidia-ml.so.1 not found; install the driver, or in a container start it with --gpus all. "
    "Trials run on the CPU."
)
BARE_HOST = HostSnapshot("bare", None, (), 2.0, 4, None, None, None, None, None, None, None)


def node(
    *devices: DeviceSnapshot,
    processes: tuple[ProcessSnapshot, ...] = (),
    problem: str | None = None,
    host: HostSnapshot = HOST,
) -> NodeSnapshot:
    """A live node."""
    has_gpus = bool(devices)
    return NodeSnapshot(
        1.0, host, "580.1" if has_gpus else None, "13.0" if has_gpus else None, devices, processes, problem
    )


def gpus(count: int) -> tuple[DeviceSnapshot, ...]:
    """Live ones; each has another load."""
    return tuple(
        replace(device(i), util_fraction=i / 10, memory_used_bytes=i * GIB, memory_total_bytes=80 * GIB)
        for i in range(count)
    )


def lost(index: int = 0) -> DeviceSnapshot:
    """One that left the bus."""
    return DeviceSnapshot(index, f"GPU-{index}", "H100", "lost", None, None, None, None, None, None, None, None, ())


def unknown(index: int = 0) -> DeviceSnapshot:
    """One that tells nothing of itself."""
    return DeviceSnapshot(index, None, None, "live", None, None, None, None, None, None, None, None, ())


def process(command: str = "python train.py", user: str | None = "me", **known: object) -> ProcessSnapshot:
    """A process on GPU 0."""
    return replace(ProcessSnapshot(4711, 0, user, GIB, 1.5, 2 * GIB, command), **known)  # type: ignore[arg-type]


def simulated() -> NodeSnapshot:
    """A node with two GPUs that is not there; the same for all time, unlike the one of `telemetry.simulated`."""
    busy = replace(device(0), name="Simulated H100", util_fraction=0.92, memory_used_bytes=62 * GIB)
    idle = replace(device(1), name="Simulated H100", util_fraction=0.04, memory_used_bytes=GIB)
    devices = tuple(replace(gpu, memory_total_bytes=80 * GIB) for gpu in (replace(busy, throttle=("power cap",)), idle))
    host = HostSnapshot(
        "simulated",
        0.58,
        tuple(i / 16 for i in range(16)),
        16.0,
        64,
        9.4,
        42 * GIB,
        512 * GIB,
        128 * GIB,
        GIB,
        64 * GIB,
        0.02,
    )
    mine = process("python train.py", "you", is_trial=True)
    theirs = process("python -m serve --model small", "somebody", device_index=1, pid=4712)
    return replace(node(*devices, processes=(mine, theirs), host=host), simulated=True)
