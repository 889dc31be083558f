"""A script's trial seen from torch's hooks: what it times after the page cache was dropped, and whom its cap holds."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gputune_tui.domain.job import Job, MeasurePlan
from gputune_tui.domain.protocol import BlockDone, DataRead, Done, Phase
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trainer.contention import BlockWatch
from gputune_tui.trainer.script import meter as script
from gputune_tui.trainer.script.meter import ScriptMeter, prefetched_batches
from tests.trainer.forked import in_fork
from tests.trainer.scripted import Clock, Recorder, ScriptedCpu

STEP_S = 0.25
PLAN = MeasurePlan(blocks=3, min_blocks=3, block_s=1.0)


def job(**fields: Any) -> Job:
    return Job("trial", WorkloadRef("s", samples_per_step=8), plan=PLAN, **fields)


def steps_of_blocks(monkeypatch: pytest.MonkeyPatch, drop_s: float | None, prefetched: int) -> Any:
    """Which optimizer steps ended each block, and the block's seconds; `drop_s`: of dropping the page cache."""
    clock, events = Clock(), Recorder()
    monkeypatch.setattr(script, "time", clock)
    monkeypatch.setattr(script, "prefetched_batches", lambda: prefetched)
    meter = ScriptMeter(job(), events, folder=Path(tempfile.mkdtemp()))
    meter._watch = BlockWatch(ScriptedCpu())

    def drop() -> bool:
        clock.wait(drop_s or 0.0)
        return drop_s is not None

    monkeypatch.setattr(meter._data, "drop_page_cache", drop)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    ended: list[tuple[int, float]] = []
    for step in range(1000):
        clock.wait(STEP_S)
        try:
            meter._after_step(optimizer, (), {})
        except SystemExit:
            break
        finally:
            blocks = [event.block for event in events.events if isinstance(event, BlockDone)]
            if len(blocks) > len(ended):
                ended.append((step, blocks[-1].elapsed_s))
    assert [type(event) for event in events.events[-3:]] == [Phase, DataRead, Done]
    first = ended[0][0]
    return [(step - first, elapsed_s) for step, elapsed_s in ended]


@pytest.mark.parametrize(
    ("drop_s", "prefetched", "untimed"),
    [(None, 6, 0), (0.0, 0, 1), (0.0, 6, 12), (5.0, 6, 20), (1.0, 6, 12)],
)
def test_what_was_prefetched_warm_is_not_timed_after_a_drop(
    monkeypatch: pytest.MonkeyPatch, drop_s: float | None, prefetched: int, untimed: int
) -> None:
    def trial() -> Any:
        return steps_of_blocks(monkeypatch, drop_s, prefetched)

    # A block is four steps.
    assert in_fork(trial) == [[n * (4 + untimed), 1.0] for n in range(PLAN.blocks)]


def test_the_workers_of_loaders_in_use_hold_batches_ready() -> None:
    def trial() -> Any:
        data = TensorDataset(torch.ones(64, 1))
        before = prefetched_batches()  # other tests' loaders may still be alive
        used = iter(DataLoader(data, batch_size=1, num_workers=2, prefetch_factor=3))
        next(used)
        ready = prefetched_batches()
        del used
        return [ready - before, prefetched_batches() - before]

    assert in_fork(trial) == [6, 0]


def test_loader_workers_are_free_of_the_scripts_cap() -> None:
    def trial() -> Any:
        meter = ScriptMeter(job(budget_bytes=4 << 30, fixed_overhead_bytes=1 << 20), Recorder())
        meter.arm()
        own = resource.getrlimit(resource.RLIMIT_DATA)
        reader, writer = os.pipe()
        if os.fork() == 0:
            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            os.write(writer, b"free" if soft == hard else b"held")
            os._exit(0)
        os.close(writer)
        return own[0] != own[1], os.read(reader, 4).decode(), resource.getrlimit(resource.RLIMIT_DATA) == own

    assert in_fork(trial) == [True, "free", True]
