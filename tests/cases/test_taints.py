"""What taints a number, in real trials: others on the CPU, subnormal values, shapes that go on changing, and memory
that no cap of ours holds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import FailureReason, Trial, TrialState
from gputune_tui.ranking.taints import taints
from gputune_tui.trial.supervisor import Limits

from .conftest import RunCase
from .running import Result

pytestmark = pytest.mark.slow

BUSY = "while True: pass"


def words(result: Result) -> str:
    """The doubts about the row."""
    trial = Trial(1, TrainSettings(), TrialState.COMPLETE, launches=(result.seen.launch(),))
    return "; ".join(taint.text for taint in taints(trial))


def test_busy_processes_beside_a_trial_are_seen(run_case: RunCase) -> None:
    cpus = len(os.sched_getaffinity(0))
    burners = [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(2 * cpus)]
    try:
        source = """
        class Workload(Base):
            def loss(self, model, batch):
                for _ in range(200): loss = super().loss(model, batch)
                return loss
        """
        result = run_case(source)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    assert result.is_complete, result.message
    conditions = result.seen.launch().conditions
    assert conditions is not None
    if conditions.others_cpu_before_fraction is None:
        pytest.skip("this kernel does not tell children (CONFIG_PROC_CHILDREN)")
    assert conditions.others_cpu_before_fraction > 0.2
    assert "other processes used" in words(result)


def test_subnormal_values_are_found_and_flushing_ends_them(run_case: RunCase) -> None:
    source = """
    class Workload(Base):
        def build_model(self): return nn.Sequential(nn.Linear(4, 256), nn.Linear(256, 1))
        def loss(self, model, batch): return (model(batch) * 1e-20).pow(2).mean()
    """
    found = run_case(source)
    assert found.is_complete, found.message
    fraction = found.seen.conditions.denormal_fraction
    assert fraction is not None
    assert fraction > 1e-3
    assert "flush_denormal=true" in words(found)
    flushed = run_case(source, flush_denormal=True)
    assert "flush_denormal" not in words(flushed)
    plain = run_case("class Workload(Base): pass")
    assert plain.seen.conditions.denormal_fraction == 0


def test_shapes_that_go_on_changing_are_told(run_case: RunCase) -> None:
    source = """
    class Workload(Base):
        length = 1
        def collate_fn(self, samples):
            self.length += 1
            return torch.ones(len(samples), self.length, 4)
    """
    result = run_case(source)
    assert result.is_complete, result.message
    assert "batch shapes still changing" in words(result)
    assert "shapes" not in words(run_case("class Workload(Base): pass"))


def test_memory_that_is_taken_once_all_is_measured_costs_nothing(run_case: RunCase) -> None:
    source = """
    import mmap, sys
    class Late(Numbers):
        def __len__(self):
            if sys._getframe(2).f_code.co_name == "_measure":  # the data's record, after everything that is measured
                self.held = mmap.mmap(-1, 1 << 30)
                for page in range(0, len(self.held), 4096): self.held[page] = 1
                time.sleep(1.5)
                print("held it")
            return super().__len__()
    class Workload(Base):
        def build_dataset(self): return Late()
    """
    budget = 800 << 20
    result = run_case(source, budget_bytes=budget, limits=Limits(stall_s=60, budget_bytes=budget))
    assert result.is_complete, result.message
    assert "held it" in result.log.read_text()
    assert (result.seen.memory.device_peak_bytes or budget) < budget


def test_memory_of_a_c_library_past_the_cap_ends_the_trial_and_the_next_starts_clean(run_case: RunCase) -> None:
    source = """
    import mmap
    class Workload(Base):
        steps = 0
        def loss(self, model, batch):
            self.steps += 1
            if self.steps == 4:
                self.held = mmap.mmap(-1, 1 << 30)  # shared: the limit of private data does not hold it
                for page in range(0, len(self.held), 4096): self.held[page] = 1
                time.sleep(600)
            return super().loss(model, batch)
    """
    budget = 800 << 20
    limits = Limits(stall_s=60, budget_bytes=budget)
    result = run_case(source, budget_bytes=budget, limits=limits)
    assert result.reason is FailureReason.OVER_BUDGET, result.message
    assert "of the budget of 800 MiB" in result.message
    assert (result.seen.memory.device_peak_bytes or 0) > budget
    after = run_case("class Workload(Base): pass", budget_bytes=budget, limits=limits)
    assert after.is_complete, after.message
