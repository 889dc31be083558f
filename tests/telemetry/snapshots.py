"""Snapshots for tests, and waiting for what other processes do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TypeVar

from gputune_tui.domain.plain import to_plain
from gputune_tui.domain.telemetry import DeviceSnapshot, HostSnapshot, NodeSnapshot

T = TypeVar("T")
DEADLINE_S = 60.0
HOST = HostSnapshot("node", 0.5, (0.4, 0.6), 2.0, 2, 1.0, 1, 2, None, 0, 1, 0.0)


def device(index: int = 0, power_w: float | None = 100.0) -> DeviceSnapshot:
    return DeviceSnapshot(index, f"GPU-{index}", "H100", "live", 0.5, 1, 2, 0, power_w, 700.0, 50.0, 1000, ())


def node(time_s: float = 1.0, gpus: int = 1, problem: str | None = None) -> NodeSnapshot:
    devices = tuple(device(i) for i in range(gpus))
    return NodeSnapshot(time_s, HOST, "580.1" if gpus else None, "13.0" if gpus else None, devices, (), problem)


def line(snapshot: NodeSnapshot) -> str:
    return json.dumps(to_plain(snapshot)) + "\n"


def until(ask: Callable[[], T | None], pause_s: float = 0.02) -> T:
    """The first answer that is not None or false."""
    deadline = time.monotonic() + DEADLINE_S
    while not (answer := ask()):
        assert time.monotonic() < deadline
        time.sleep(pause_s)
    return answer


def is_running(pid: int) -> bool:
    """Whether a process of that number computes or waits; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def no_longer_runs(pid: int) -> bool:
    return not is_running(pid)
