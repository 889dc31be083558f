"""Real comparisons of `lm` tiny: of a setting with itself, and with a slow-down planted into one arm."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gputune_tui.domain.knobs import KnobValue
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.engine.commands import Compare, StudyConfig
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import Compared, Problem
from gputune_tui.ranking.statistics import Ratio, Verdict
from gputune_tui.ranking.wording import verdict_text
from tests.benchmarks.measuring import BATCH

WORKLOADS = Path(__file__).parents[2] / "workloads"
PLANTED = '''
import sys, time

import torch

sys.path.insert(0, {folder!r})
import lm

SLOWER_BY = {slower_by}
LONGEST = 3


class Workload(lm.Workload):
    """`lm` tiny whose steps take longer by a fixed share where denormal numbers are not flushed.

    That knob is one that the workload can see and that changes nothing else here: there are no denormal numbers.
    """

    def __init__(self):
        super().__init__("tiny")
        self.slow = bool(torch.full((1,), 1e-40).mul(1.0).item())
        self.last, self.usual = None, None

    def loss(self, model, batch):
        began = time.perf_counter()
        if self.slow and self.last is not None:
            step = began - self.last
            self.usual = self.usual or step
            # A trial that waited for its turn has not worked meanwhile.
            step = self.usual if step > LONGEST * self.usual else step
            self.usual += (step - self.usual) / 20
            while time.perf_counter() - began < SLOWER_BY * step:
                pass
        self.last = time.perf_counter()
        return super().loss(model, batch)
'''


@dataclass(frozen=True)
class Real:
    """How a real comparison ended."""

    verdict: Verdict
    ratio: Ratio | None
    elapsed_s: float
    pairs: int


def compare_really(number: int, slower_by: float = 0.0, max_time_s: float | None = None) -> list[Real]:
    """So many comparisons one after the other, each in a study of its own; A is the slower arm."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        workload = WorkloadRef("lm", {"size": "tiny"})
        arms: tuple[dict[str, KnobValue], dict[str, KnobValue]] = ({}, {})
        if slower_by:
            path = Path(folder) / "planted.py"
            path.write_text(PLANTED.format(folder=str(WORKLOADS), slower_by=slower_by))
            workload, arms = WorkloadRef(str(path)), ({}, {"flush_denormal": True})
        for index in range(number):
            config = StudyConfig(
                workload, device="cpu", budget="4GiB", global_batch_size=BATCH, study=f"{folder}/study{index}"
            )
            found.append(_compare(config, Compare(*arms, max_time_s=max_time_s)))
            said = found[-1]
            words = verdict_text(said.verdict, said.ratio, 0.03, said.elapsed_s)
            print(f"  {index + 1} of {number}: {words}, {said.pairs} pairs, {said.elapsed_s:.0f} s", flush=True)
    return found


def _compare(config: StudyConfig, order: Compare) -> Real:
    with closing(Engine()) as engine:
        for event in engine.open(config):
            _tell(event)
        began = time.perf_counter()
        for event in engine.handle(order):
            _tell(event)
            if isinstance(event, Compared):
                elapsed_s = time.perf_counter() - began
                ratio = None
                if event.ratio is not None and event.low is not None and event.high is not None:
                    ratio = Ratio(event.ratio, event.low, event.high, event.confidence)
                return Real(event.verdict, ratio, elapsed_s, event.pairs)
    raise AssertionError("a comparison ended without a word")


def _tell(event: object) -> None:
    if isinstance(event, Problem):
        print(f"  {event.text}", flush=True)


def verdicts(found: list[Real]) -> Counter[Verdict]:
    """How often each was said."""
    return Counter(one.verdict for one in found)
