"""The left pane: GPUs of every number and state, or the reason why there are none."""

from __future__ import annotations

import math
from dataclasses import replace

from gputune_tui.domain.study import MemoryBudget
from gputune_tui.engine.events import StudyOpened, StudyTrials
from tests.ranking.make import identity
from tests.telemetry.snapshots import HOST, device
from tests.tui import nodes
from tests.tui.scripted import BASELINE, WIDE, Driven, drive, opened


def words(shown: str) -> str:
    """The words in a panel's border, whatever lines they stand on."""
    return " ".join(" ".join(line.strip("│|") for line in shown.splitlines()[1:-1]).split())


def test_gpus_of_every_number_and_state() -> None:
    async def steps(it: Driven) -> None:
        assert "asking the driver" in it.seen("gpus")
        await it.tick(nodes.node())
        assert "asking the driver" in it.seen("gpus")

        # Without a GPU: why, in full.
        await it.tick(nodes.node(problem=nodes.PROBLEM))
        assert words(it.seen("gpus")) == nodes.PROBLEM
        assert "N/A" not in it.rows()[0]

        for count in (1, 2, 9):
            await it.tick(nodes.node(*nodes.gpus(count)))
            await it.settle()
            for number in range(count):
                assert f" {number * 10} %" in it.seen("gpus"), (count, number)
            assert f" {count * 10} %" not in it.seen("gpus")
        assert "driver 580.1" in it.rows()[0]

        await it.tick(nodes.node(device(0), nodes.lost(1), replace(device(2), state="stale")))
        await it.settle()
        assert it.seen("gpus").count("LOST") == 1
        assert "1 lost" in it.seen("gpus")
        assert "stale" in it.seen("gpus")

        # What is not known is not zero; what is zero is.
        await it.tick(nodes.node(nodes.unknown(), host=nodes.BARE_HOST))
        await it.settle()
        shown = it.seen("gpus") + it.seen("host")
        assert shown.count("N/A") > 2
        assert not any(zero in shown for zero in (" 0 %", "0 B", " 0 W", "▏0 ", " 0/"))
        idle = replace(device(), util_fraction=0.0, memory_used_bytes=0, power_w=0.0)
        await it.tick(nodes.node(idle))
        assert "0 %" in it.seen("gpus")
        assert "N/A" not in it.seen("gpus")

        # Numbers that no node has break nothing either.
        for odd in (math.nan, math.inf, -math.inf, -1.0, 1e300):
            gpu = replace(device(), util_fraction=odd, power_w=odd, power_limit_w=odd, temperature_c=odd)
            host = replace(HOST, cpu_fraction=odd, load_1=odd, per_cpu_fractions=(odd,) * 300, iowait_fraction=odd)
            row = nodes.process(cpu_fraction=odd)
            await it.tick(nodes.node(gpu, replace(gpu, memory_used_bytes=-1), host=host, processes=(row,)))
        assert it.app.is_running

        # The budget is marked on the memory of GPUs where it is one of theirs.
        on_gpu = replace(identity(), environment=replace(identity().environment, device="cuda:0"))
        await it.say(StudyOpened("/s", on_gpu, 1, MemoryBudget(40 * nodes.GIB), 0), StudyTrials((), BASELINE))
        await it.tick(nodes.node(*nodes.gpus(1)))
        assert "┊" in it.seen("gpus")
        await it.say(*opened())
        await it.tick(nodes.node(*nodes.gpus(1)))
        assert "┊" not in it.seen("gpus")

    drive(steps, WIDE)


def test_the_host_its_processes_and_how_old_the_numbers_are() -> None:
    async def steps(it: Driven) -> None:
        await it.press("1")
        it.sampler.age_s, it.sampler.problem = 9.0, "The process that reads the node died; it is replaced."
        await it.tick()
        assert "reading the node" in it.rows()[0]
        await it.tick(nodes.node())
        it.sampler.age_s = 9.0
        await it.tick()
        assert "stale 9 s" in it.rows()[0]
        assert "The process that reads" in it.rows()[0]
        it.sampler.problem = None

        # Held still on demand; then the newest is shown.
        await it.press("z")
        assert "paused" in it.rows()[0]
        before = it.seen("host")
        await it.tick(nodes.node(*nodes.gpus(1), host=replace(HOST, load_1=77.0)))
        assert it.seen("host") == before
        await it.press("z")
        await it.tick(nodes.node(*nodes.gpus(1), host=replace(HOST, load_1=78.0)))
        assert "78" in it.seen("host")

        # Limits of the cgroup count, and are told.
        limited = replace(HOST, effective_cpus=1.5, cpus=64, memory_used_bytes=nodes.GIB)
        limited = replace(limited, memory_total_bytes=64 * nodes.GIB, memory_limit_bytes=4 * nodes.GIB)
        await it.tick(nodes.node(host=limited))
        assert "1.50 of 64 cores" in it.seen("host")
        assert "4.00 GiB" in it.seen("host")
        assert "64.0 GiB" not in it.seen("host")

        await it.tick(nodes.simulated())
        await it.settle()
        assert "SIMULATED" in it.rows()[0]
        (mine,) = [row for row in it.seen("processes").splitlines() if "4711" in row]
        (theirs,) = [row for row in it.seen("processes").splitlines() if "4712" in row]
        assert "▸" in mine
        assert "▸" not in theirs
        await it.press("2")
        assert "SIMULATED 0▇ 1▁" in it.rows()[0]

        # A reason is read in full, however narrow the screen is.
        await it.press("1")
        await it.tick(nodes.node(problem=nodes.PROBLEM))
        await it.resize(40, 24)
        assert words(it.seen("gpus")) == nodes.PROBLEM

    drive(steps)
