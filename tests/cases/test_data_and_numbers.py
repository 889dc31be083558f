"""Unusual data, memory that runs out and numbers that are none: the right figure, or the reason in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import FailureReason
from gputune_tui.ranking.guard import compare_guard

from .conftest import RunCase

pytestmark = pytest.mark.slow

LOSS = """
class Workload(Base):
    calls = 0
    def loss(self, model, batch):
        self.calls += 1
        {body}
"""


def test_batches_of_any_type_arrive_as_they_are(run_case: RunCase) -> None:
    result = run_case(
        """
        from collections import namedtuple
        from dataclasses import dataclass
        Batch = namedtuple("Batch", "x name none item")
        @dataclass
        class Item: t: object
        class Workload(Base):
            def collate_fn(self, samples): return Batch(torch.stack(samples), "n", None, Item(torch.ones(len(samples))))
            def loss(self, model, batch):
                assert type(batch) is Batch and batch[1:3] == ("n", None) and isinstance(batch.item, Item)
                return {"loss": model(batch.x).pow(2).mean(), "logits": 1}
        """,
        num_workers=2,
    )
    assert result.is_complete, result.message


def test_spawned_workers_find_classes_of_the_users_file(run_case: RunCase) -> None:
    result = run_case(
        """
        class Workload(Base):
            def build_loader(self, batch_size, num_workers):
                return DataLoader(Numbers(), batch_size, num_workers=num_workers, persistent_workers=True,
                                  multiprocessing_context="spawn")
        """,
        file="my wl.v2.py",
        num_workers=1,
    )
    assert result.is_complete, result.message


def test_tied_weights_stay_tied_and_are_given_once(run_case: RunCase) -> None:
    result = run_case(
        """
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.e, self.h = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
                self.h.weight = self.e.weight
        class Workload(Base):
            def build_model(self): return Tied()
            def build_dataset(self): return TensorDataset(torch.randint(0, 10, (64, 4)))
            def build_optimizer(self, parameters):
                [only] = parameters
                return torch.optim.SGD([only], lr=0.1)
            def loss(self, model, batch):
                assert model.e.weight is model.h.weight
                logits = model.h(model.e(batch[0])).flatten(0, 1)
                return nn.functional.cross_entropy(logits, batch[0].flatten())
        """
    )
    assert result.is_complete, result.message


def test_an_iterable_whose_length_raises(run_case: RunCase) -> None:
    result = run_case(
        """
        class Stream(IterableDataset):
            def __len__(self): raise NotImplementedError
            def __iter__(self): return iter(torch.ones(40, 4))
        class Workload(Base):
            def build_dataset(self): return Stream()
        """
    )
    assert result.is_complete, result.message


def test_the_optimizer_steps_once_a_window_and_samples_are_counted(run_case: RunCase) -> None:
    result = run_case(
        """
        class Counting(torch.optim.SGD):
            steps = 0
            def step(self, *a, **k):
                Counting.steps += 1
                return super().step(*a, **k)
        class Data(Numbers):
            def __len__(self): return 10
        class Workload(Base):
            samples = 0
            def build_dataset(self): return Data()
            def build_optimizer(self, parameters): return Counting(parameters, lr=0.01)
            def loss(self, model, batch):
                self.samples += len(batch)
                return super().loss(model, batch)
            def close(self): print(f"{Counting.steps} steps {self.samples} samples")
        """,
        micro_batch_size=4,
    )
    assert result.is_complete, result.message
    steps, samples = (int(word) for word in result.log.read_text().split() if word.isdigit())
    # Every epoch of ten samples is 4, 4 and 2.
    # Two batches more are looked at without a step, for the loss's noise.
    assert samples == steps // 3 * 10 + steps % 3 * 4 + 2 * 4
    for block in result.seen.blocks:
        assert block.steps // 3 * 10 <= block.samples <= block.steps // 3 * 10 + 8


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise RuntimeError('CUDA error: CUBLAS_STATUS_ALLOC_FAILED')", FailureReason.DEVICE_OOM),
        (
            "import resource; pages = int(open('/proc/self/statm').read().split()[0]); "
            "resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20),) * 2); torch.ones(1 << 30)",
            FailureReason.HOST_OOM,
        ),
    ],
)
def test_memory_that_runs_out_is_typed(run_case: RunCase, body: str, reason: FailureReason) -> None:
    assert run_case(LOSS.format(body=body), budget_bytes=None).reason is reason


def test_a_trial_ends_itself_before_it_takes_more_than_its_budget(run_case: RunCase) -> None:
    body = "self.kept = [*getattr(self, 'kept', ()), torch.ones(32 << 20)]; return super().loss(model, batch)"
    result = run_case(LOSS.format(body=body), budget_bytes=1 << 30)
    assert result.reason is FailureReason.OVER_BUDGET
    peak = result.seen.memory.device_peak_bytes
    assert peak is not None
    assert peak < (1 << 30) + (128 << 20)


def test_an_out_of_memory_in_backward_leaves_nothing_for_the_next(run_case: RunCase) -> None:
    whole = LOSS.format(body="return super().loss(model, batch)")
    boom = """
class Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): raise torch.OutOfMemoryError("CUDA out of memory")
""" + LOSS.format(body="self.kept = torch.ones(64 << 20); return Boom.apply(super().loss(model, batch))")
    first, failed, third = run_case(whole), run_case(boom, budget_bytes=None), run_case(whole)
    assert failed.reason is FailureReason.DEVICE_OOM
    peaks = [r.seen.memory.device_peak_bytes or 0 for r in (first, third)]
    assert abs(peaks[0] - peaks[1]) < 32 << 20


def test_skipped_steps_are_counted_and_not_taken_for_steps(run_case: RunCase) -> None:
    body = "return model(batch).float().pow(2).mean() * (1e38 if self.calls <= 3 else 1)"
    result = run_case(LOSS.format(body=body), precision="fp16")
    assert result.is_complete, result.message
    assert result.seen.guard is not None
    assert result.seen.guard.skipped_steps == 3


def test_a_loss_that_is_no_number_fails(run_case: RunCase) -> None:
    result = run_case(LOSS.format(body="return super().loss(model, batch) + float('nan')"))
    assert result.reason is FailureReason.NON_FINITE
    assert "nan" in result.message


def test_an_optimizer_without_effect_is_noticed(run_case: RunCase) -> None:
    result = run_case(
        """
        class Idle(torch.optim.SGD):
            def step(self, closure=None): pass
        class Workload(Base):
            def build_optimizer(self, parameters): return Idle(parameters, lr=0.1)
        """
    )
    assert result.is_complete, result.message
    assert result.seen.guard is not None
    reason = compare_guard(result.seen.guard, None, TrainSettings(), None, batchnorm=False)
    assert reason == "no parameter moved: the optimizer step has no effect"


def test_the_optimizers_fast_path_shows_the_memory_that_it_takes(run_case: RunCase) -> None:
    source = """
class Workload(Base):
    def build_model(self): return nn.Sequential(nn.Linear(4096, 2100), nn.Linear(2100, 4096), nn.Linear(4096, 2100))
    def build_dataset(self): return torch.ones(64, 4096)
    def build_optimizer(self, parameters): return torch.optim.Adam(parameters)
"""
    # Weights of over 32 MiB each: smaller ones glibc keeps in its heap, whose holes are as large as the difference.
    runs = [run_case(source, optimizer=kind) for kind in ("loop", "foreach")]
    assert all(run.is_complete for run in runs), runs
    loop, foreach = (run.seen.memory.device_peak_bytes or 0 for run in runs)
    assert foreach > loop + (16 << 20), "it keeps temporaries of all weights at once"


def test_half_precision_on_a_cpu_says_that_it_is_emulated(run_case: RunCase) -> None:
    result = run_case("class Workload(Base): pass", precision="fp16")
    assert result.is_complete, result.message
    assert any("fp16 on a CPU is mostly emulated" in note for note in result.seen.notes)


def test_half_parameters_refuse_fp16_alone(run_case: RunCase) -> None:
    source = """
class Workload(Base):
    def build_model(self): return nn.Linear(4, 1).half()
    def loss(self, model, batch): return model(batch.half()).pow(2).mean()
"""
    refused = run_case(source, precision="fp16")
    assert refused.reason is FailureReason.INVALID
    assert "fp16 AMP is not applicable" in refused.message
    assert run_case(source, precision="fp32").is_complete


def test_batchnorm_is_told_its_micro_batch(run_case: RunCase) -> None:
    source = """
class Workload(Base):
    def build_model(self): return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
"""
    result = run_case(source, micro_batch_size=4, accumulation_steps=2)
    assert result.is_complete, result.message
    assert "BatchNorm sees micro-batch 4" in result.seen.notes


RANDOM_STEPS = {
    "augmentation": """
        class Augmented(Numbers):
            def __getitem__(self, i): return super().__getitem__(i) + 0.5 * torch.randn(4)
        class Workload(Base):
            def build_dataset(self): return Augmented()
        """,
    "dropout": """
        class Workload(Base):
            def build_model(self):
                return nn.Sequential(
                    nn.Linear(4, 32), nn.Dropout(0.3), nn.Linear(32, 32), nn.Dropout(0.3), nn.Linear(32, 1)
                )
            def loss(self, model, batch): return (model(batch) - 1).pow(2).mean()
        """,
}


@pytest.mark.parametrize(
    ("kind", "other"),
    [("augmentation", {"num_workers": 1}), ("dropout", {"micro_batch_size": 4, "accumulation_steps": 2})],
)
def test_a_random_step_is_the_same_training_under_other_draws(
    run_case: RunCase, kind: str, other: dict[str, Any]
) -> None:
    plain, varied = run_case(RANDOM_STEPS[kind]), run_case(RANDOM_STEPS[kind], **other)
    assert plain.seen.guard is not None
    assert varied.seen.guard is not None
    assert plain.seen.guard.losses != varied.seen.guard.losses
    baseline = TrainSettings(micro_batch_size=8)
    settings = replace(baseline, **other)
    assert compare_guard(varied.seen.guard, plain.seen.guard, settings, baseline, batchnorm=False) is None


def test_a_workload_whose_folder_is_gone_keeps_its_measurement(run_case: RunCase) -> None:
    result = run_case(
        """
        import os, tempfile
        class Workload(Base):
            steps = 0
            def build_dataset(self):
                folder = tempfile.mkdtemp()
                os.chdir(folder)
                with open("numbers.txt", "w") as file: file.write("1")
                return Numbers()
            def loss(self, model, batch):
                self.steps += 1
                if self.steps == 1:
                    open("numbers.txt").close()
                    os.remove("numbers.txt")
                    os.rmdir(os.getcwd())
                return super().loss(model, batch)
        """
    )
    assert result.is_complete, result.message
    assert result.seen.blocks


def test_a_dataset_that_breaks_after_the_measurement_costs_only_the_noise(run_case: RunCase) -> None:
    result = run_case(
        """
        class Once(Numbers):
            closed = False
            def __getitem__(self, i):
                import sys
                frame = sys._getframe()
                while frame is not None:
                    if frame.f_code.co_name == "loss_noise": raise RuntimeError("the file is closed")
                    frame = frame.f_back
                return super().__getitem__(i)
        class Workload(Base):
            def build_dataset(self): return Once()
        """
    )
    assert result.is_complete, result.message
    assert result.seen.guard is not None
    assert result.seen.guard.loss_noise_fraction is None
