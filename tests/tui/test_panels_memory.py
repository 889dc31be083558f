"""A monitor is kept open for days: ten thousand readings, and as many pictures of them, leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from dataclasses import replace

import pynvml
import pytest

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


def check_flat(tick: Callable[[int], None]) -> None:
    before = 0
    for number in range(TICKS):
        if number == WARM_UP:
            before = resident_bytes()
        tick(number)
    assert resident_bytes() - before < MOST_BYTES


@pytest.mark.slow  # ten thousand of everything
def test_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [{"pid": os.getpid(), "mib": 100, "sm": 30}]
    monkeypatch.setattr(pynvml, "nvmlLib", Library([Gpu(dict(BUSY), processes=processes) for _ in range(2)]))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    now = [0.0]

    def clock() -> float:
        now[0] += 0.25
        return now[0]

    node = LiveNode(clock=clock)
    order = SamplerSettings(expand_all=True)

    def tick(_: int) -> None:
        decode(encode(node.read(order)))

    check_flat(tick)


@pytest.mark.slow  # likewise
def test_drawing() -> None:
    node = SimulatedNode(0, 4, lambda: 0.0)

    async def steps(it: Monitor) -> None:
        def tick(number: int) -> None:
            it.source.next = replace(node.at(float(number)), time_s=1e9 + number)
            it.app.main.look()

        before = 0
        for number in range(TICKS):
            if number == WARM_UP:
                before = resident_bytes()
            tick(number)
            if number % 50 == 0:
                await asyncio.sleep(0)
                await it.settle()
        assert resident_bytes() - before < MOST_BYTES

    drive(steps)
