"""Real trials whose need for memory has its peak outside the measured batches, or outside the trial's main process."""

from __future__ import annotations

import pytest

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import Failure, FailureReason, Trial, TrialState
from gputune_tui.ranking.feasibility import is_feasible, passed_host_budget
from gputune_tui.ranking.memory_notes import worst_moment
from gputune_tui.trial.supervisor import Limits

from .conftest import RunCase

pytestmark = pytest.mark.slow

MIB = 1 << 20
NEEDY = """
class Workload(Base):
    def loss(self, model, batch):
        self.kept = torch.ones(len(batch) * (batch.shape[1] - 4) * {mib} << 18)
        loss = model(batch[:, :4]).pow(2).mean()
        del self.kept
        return loss
    {extra}
"""
LONGEST = "def largest_batch(self, n): return torch.ones(n, 5)"
EVALUATION = "def eval_step(self, model, batch): torch.ones({mib} << 18)"


def test_the_longest_batch_counts_and_is_told_apart(run_case: RunCase) -> None:
    plain = run_case(NEEDY.format(mib=25, extra=""))
    result = run_case(NEEDY.format(mib=25, extra=LONGEST))
    assert plain.is_complete, plain.message
    assert result.is_complete, result.message
    peaks = [one.seen.memory.device_peak_bytes or 0 for one in (plain, result)]
    assert 190 * MIB < peaks[1] - peaks[0] < 230 * MIB
    said = worst_moment([result.seen.launch()])
    assert said is not None
    assert said.startswith("the peak is that of the longest batch; until then it was ")
    assert worst_moment([plain.seen.launch()]) is None
    # The measured training is the same with and without.
    assert plain.seen.guard is not None
    assert result.seen.guard is not None
    assert result.seen.guard.losses == plain.seen.guard.losses
    assert result.seen.guard.gradient_norms == plain.seen.guard.gradient_norms


@pytest.mark.parametrize(
    ("source", "place"),
    [
        (NEEDY.format(mib=250, extra=LONGEST), "(in the longest batch (largest_batch))"),
        (NEEDY.format(mib=0, extra=EVALUATION.format(mib=2000)), "(in the evaluation step (eval_step))"),
    ],
)
def test_what_does_not_fit_there_is_typed_and_says_where(run_case: RunCase, source: str, place: str) -> None:
    result = run_case(source, budget_bytes=1 << 30)
    assert result.reason is FailureReason.OVER_BUDGET
    assert result.message.endswith(place)
    assert result.seen.blocks == []


def test_a_fault_in_the_users_own_evaluation_is_theirs(run_case: RunCase) -> None:
    result = run_case(NEEDY.format(mib=0, extra="def eval_step(self, model, batch): raise KeyError('labels')"))
    assert result.reason is FailureReason.CRASH
    assert result.in_workload
    assert "KeyError: 'labels'" in result.message
    assert result.message.endswith("(in the evaluation step (eval_step))")


WORKERS = """
class Big(Dataset):
    def __len__(self): return 4096
    def __getitem__(self, i): return torch.full((1 << 18,), 1.0)
class Workload(Base):
    def build_dataset(self): return Big()
    def loss(self, model, batch):
        time.sleep(0.3)
        return model(batch[:, :4]).pow(2).mean()
"""


def test_prefetched_batches_are_held_to_the_hosts_budget(run_case: RunCase) -> None:
    knobs = {"micro_batch_size": 32, "num_workers": 2, "prefetch_factor": 8}
    result = run_case(WORKERS, limits=Limits(host_bytes=1100 * MIB), **knobs)
    assert result.reason is FailureReason.OVER_BUDGET
    assert "host memory with its 2 other processes" in result.message
    assert "more than the host's budget of 1.07 GiB" in result.message
    assert not result.in_workload
    seen = result.seen.memory
    failure = Failure(result.reason, result.message)
    failed = Trial(1, TrainSettings(), TrialState.FAIL, failure, (), seen, 2 << 30, host_budget_bytes=1100 * MIB)
    assert seen.host_peak_bytes is not None
    assert seen.host_peak_bytes > 1100 * MIB
    assert is_feasible(failed, MemoryBudget(2 << 30, 1100 * MIB)) is False
    assert is_feasible(failed, MemoryBudget(2 << 30, 8 << 30)) is None
    assert passed_host_budget(failed)
