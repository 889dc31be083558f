"""One resident trial whose blocks are taken with something switched on and off in turn, and what that costs it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator

from gputune_tui.domain.protocol import RunBlock
from gputune_tui.domain.trial import Block
from gputune_tui.trial.supervisor import TrialRun

ORDER = (False, True, True, False)
"""Whether it is on: a steady drift of the machine cancels out within a cycle."""


def wait_ready(run: TrialRun) -> None:
    """Until the trial waits for orders."""
    while run.seen.phase != "ready":
        run.poll()
        assert not run.finished, run.failure


def next_block(run: TrialRun) -> Block:
    """Order one block and wait for it."""
    before = len(run.seen.blocks)
    run.order(RunBlock())
    while len(run.seen.blocks) == before or run.seen.phase != "ready":
        run.poll()
        assert not run.finished, run.failure
    return run.seen.blocks[-1]


def log_ratios(run: TrialRun, switch: Callable[[bool], None]) -> Iterator[float]:
    """Of each cycle, without end: log throughput with it on, less that with it off."""
    while True:
        rates: dict[bool, list[float]] = {True: [], False: []}
        for is_on in ORDER:
            switch(is_on)
            rates[is_on].append(math.log(next_block(run).samples_per_s))
        yield statistics.fmean(rates[True]) - statistics.fmean(rates[False])
