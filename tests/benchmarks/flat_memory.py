"""A monitor is kept open for days: ten thousand readings, and as many pictures of them, leave nothing behind.

Run: python -m tests.benchmarks.flat_memory
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from dataclasses import replace

import pynvml

from gputune_tui.domain.telemetry import SamplerSettings
from gputune_tui.telemetry.live import LiveNode
from gputune_tui.telemetry.simulated import SimulatedNode
from gputune_tui.telemetry.wire import decode, encode
from tests.telemetry.nvml_library import BUSY, Gpu, Library
from tests.tui.test_panels_monitor import Monitor, drive

TICKS, WARM_UP = 10_000, 2_000
MOST_BYTES = 3 << 20
"""What the allocator may keep in pieces."""


def resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def report(what: str, before: int) -> int:
    """Print what was gained since `before`; 1 for a miss."""
    gained = resident_bytes() - before
    passed = gained < MOST_BYTES
    print(f"{what}: {gained / (1 << 20):+.2f} MiB over {TICKS - WARM_UP} ticks: {'PASS' if passed else 'FAIL'}")
    return not passed


def reading() -> int:
    """Read a scripted driver with everything expanded, and take it over the wire."""
    processes = [{"pid": os.getpid(), "mib": 100, "sm": 30}]
    pynvml.nvmlLib = Library([Gpu(dict(BUSY), processes=processes) for _ in range(2)])
    now = [0.0]

    def clock() -> float:
        now[0] += 0.25
        return now[0]

    node = LiveNode(clock=clock)
    order = SamplerSettings(expand_all=True)
    before = 0
    for number in range(TICKS):
        if number == WARM_UP:
            before = resident_bytes()
        decode(encode(node.read(order)))
    return report("reading", before)


def drawing() -> int:
    """Show four simulated GPUs whose values move."""
    node = SimulatedNode(0, 4, lambda: 0.0)
    misses = 0

    async def steps(it: Monitor) -> None:
        nonlocal misses
        before = 0
        for number in range(TICKS):
            if number == WARM_UP:
                before = resident_bytes()
            it.source.next = replace(node.at(float(number)), time_s=1e9 + number)
            it.app.main.look()
            if number % 50 == 0:
                await asyncio.sleep(0)
                await it.settle()
        misses = report("drawing", before)

    drive(steps)
    return misses


if __name__ == "__main__":
    sys.exit(reading() + drawing())
