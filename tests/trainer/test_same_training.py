"""Every setting computes the same training step: accumulation, checkpointing, BatchNorm, updates per window."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.batch import shapes_of
from gputune_tui.trainer.checkpointing import apply_checkpointing
from gputune_tui.trainer.train_step import TrainStep
from gputune_tui.trainer.workload import AdaptedWorkload, WorkloadFault

CPU = torch.device("cpu")
SPLITS = [(8, 1), (4, 2), (2, 4), (1, 8)]
SPECS = ["full", "every:2", "segments:2", "selective"]


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0, norm: type[nn.Module] = nn.LayerNorm) -> None:
        super().__init__()
        self.norm = norm(8)
        self.first = nn.Linear(8, 16)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.dropout(torch.relu(self.first(self.norm(x)))))


class Stack(nn.Module):
    """Blocks in a ModuleList, called one after the other."""

    def __init__(self, blocks: int = 4, **options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(**options) for _ in range(blocks))
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def flat() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1))


class Mean:
    """Loss is a mean over samples of one length; no counts."""

    def build_model(self) -> nn.Module:
        return Stack()

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).pow(2).mean()


class Counted(Mean):
    """Samples of 1 to 8 items, padded; the loss is the mean over real items and says how many there are."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        samples, lengths = batch
        mask = torch.arange(samples.shape[1])[None, :] < lengths[:, None]
        items = int(mask.sum())
        return (model(samples).squeeze(-1).pow(2) * mask).sum() / items, items


class CountedByTensor(Counted):
    def loss(self, model: nn.Module, batch: Any) -> Any:
        loss, items = super().loss(model, batch)
        return loss, torch.tensor(items)


def step_of(
    user: Any, model: nn.Module, accumulation: int, rate: float = 0.0, **settings: Any
) -> tuple[TrainStep, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    workload = AdaptedWorkload(user, "test", type(user).__name__, "")
    chosen = TrainSettings(accumulation_steps=accumulation, **settings)
    return TrainStep(workload, model, optimizer, chosen, CPU), optimizer


def gradients(model: nn.Module) -> list[Tensor]:
    found = []
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        found.append(parameter.grad.clone())
    return found


def assert_equal_gradients(model: nn.Module, expected: list[Tensor], tolerance: float) -> None:
    for got, wanted in zip(gradients(model), expected, strict=True):
        assert torch.linalg.vector_norm(got - wanted) <= tolerance * torch.linalg.vector_norm(wanted)


def batches(user: Any, size: int, count: int = 8) -> Iterator[Any]:
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(count, 8, 8, generator=generator)
    lengths = torch.arange(count) % 8 + 1
    for start in range(0, count, size):
        part = slice(start, start + size)
        yield (samples[part], lengths[part]) if isinstance(user, Counted) else samples[part, 0]


@pytest.mark.parametrize("user", [Mean(), Counted(), CountedByTensor()], ids=lambda u: type(u).__name__)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_plain_steps_in_a_row_are_the_same_as_single_ones(user: Any, precision: str) -> None:
    torch.manual_seed(0)
    model = user.build_model()
    again = copy.deepcopy(model)
    single, _ = step_of(user, model, 1, rate=0.1, precision=precision)
    results = [single.run([batch]) for batch in batches(user, 2)]
    row, _ = step_of(user, again, 1, rate=0.1, precision=precision)
    assert row.is_plain
    clock = itertools.count()
    result, shapes, ends = row.run_plain(batches(user, 2), lambda: next(clock))
    assert ends == [0, 1, 2, 3]
    assert shapes == [shapes_of(batch) for batch in batches(user, 2)]
    assert (result.samples, result.micro_batches, result.steps) == (8, 4, 4)
    assert torch.equal(result.loss, results[-1].loss)
    assert not result.loss.requires_grad
    for got, wanted in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(got, wanted)


class OwnCount(Mean):
    def batch_size_of(self, batch: Tensor) -> int:
        return 10 * len(batch)


class Unusual(Mean):
    def loss(self, model: nn.Module, batch: Tensor) -> Any:
        return {"loss": super().loss(model, batch).reshape(1)}


def test_plain_steps_take_every_form_of_a_loss_and_the_workloads_own_count() -> None:
    torch.manual_seed(0)
    model = Stack()
    own, _ = step_of(OwnCount(), copy.deepcopy(model), 1)
    assert own.run_plain(batches(Mean(), 2), lambda: None).result.samples == 80
    again = copy.deepcopy(model)
    unusual, _ = step_of(Unusual(), again, 1, rate=0.1)
    usual, _ = step_of(Mean(), model, 1, rate=0.1)
    losses = [step.run_plain(batches(Mean(), 2), lambda: None).result.loss for step in (unusual, usual)]
    assert torch.equal(*losses)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    wrong, _ = step_of(Nothing(), Stack(), 1)
    with pytest.raises(WorkloadFault, match="returned NoneType"):
        wrong.run_plain(batches(Mean(), 2), lambda: None)


class Nothing(Mean):
    def loss(self, model: nn.Module, batch: Tensor) -> Any:
        return None


@pytest.mark.parametrize(("accumulation", "precision"), [(2, "fp32"), (1, "fp16")])
def test_steps_with_a_window_or_a_scaler_are_not_plain(accumulation: int, precision: str) -> None:
    assert not step_of(Mean(), Stack(), accumulation, precision=precision)[0].is_plain


@pytest.mark.parametrize("user", [Mean(), Counted(), CountedByTensor()], ids=lambda u: type(u).__name__)
def test_accumulation_equals_the_big_batch(user: Any) -> None:
    torch.manual_seed(0)
    model = user.build_model()
    big, _ = step_of(user, model, 1)
    whole = big.run(batches(user, 8))
    expected = gradients(model)
    for micro, accumulation in SPLITS:
        again = copy.deepcopy(model)
        step, _ = step_of(user, again, accumulation, micro_batch_size=micro)
        result = step.run(batches(user, micro))
        assert_equal_gradients(again, expected, 1e-5)
        assert result.samples == 8
        assert result.micro_batches == accumulation
        assert torch.isclose(result.loss, whole.loss, rtol=1e-5)


@pytest.mark.parametrize("user", [Mean(), Counted(), CountedByTensor()], ids=lambda u: type(u).__name__)
def test_a_tail_window_is_divided_by_its_own_count(user: Any) -> None:
    torch.manual_seed(0)
    model = user.build_model()
    step_of(user, model, 1)[0].run(batches(user, 6, count=6))
    expected = gradients(model)
    again = copy.deepcopy(model)
    step_of(user, again, 4, micro_batch_size=2)[0].run(batches(user, 2, count=6))
    assert_equal_gradients(again, expected, 1e-5)


def test_gradients_are_clean_at_every_window() -> None:
    torch.manual_seed(0)
    model = Mean().build_model()
    step, _ = step_of(Mean(), model, 2, micro_batch_size=4)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    step.run(batches(Mean(), 4))
    first = gradients(model)
    step.run(batches(Mean(), 4))
    assert_equal_gradients(model, first, 1e-6)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "stack": lambda: Stack(),
    "dropout": lambda: Stack(dropout=0.5),
    "flat": flat,
}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", MODELS)
def test_checkpointing_changes_nothing(name: str, spec: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    again = copy.deepcopy(model)
    torch.manual_seed(7)
    step_of(Mean(), model, 2, micro_batch_size=4)[0].run(batches(Mean(), 4))
    apply_checkpointing(again, spec, None)
    torch.manual_seed(7)
    step_of(Mean(), again, 2, micro_batch_size=4)[0].run(batches(Mean(), 4))
    assert_equal_gradients(again, gradients(model), 1e-6)
    assert list(again.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("spec", SPECS)
def test_checkpointing_really_recomputes(spec: str) -> None:
    model = Stack()
    calls = [0]

    def count(*_: Any) -> None:
        calls[0] += 1

    for block in model.blocks:
        block.first.register_forward_hook(count)
    apply_checkpointing(model, spec, None)
    model(torch.randn(2, 8)).sum().backward()
    recomputed = {"full": 4, "every:2": 2, "segments:2": 4, "selective": 4}[spec]
    assert calls[0] == 4 + recomputed


@pytest.mark.parametrize("spec", ["none", *SPECS])
def test_batchnorm_statistics_are_updated_once_per_micro_batch(spec: str) -> None:
    torch.manual_seed(0)
    model = Stack(norm=nn.BatchNorm1d)
    plain = copy.deepcopy(model)
    apply_checkpointing(model, spec, None)
    for each in (model, plain):
        step_of(Mean(), each, 4, micro_batch_size=2)[0].run(batches(Mean(), 2))
    for name, buffer in plain.named_buffers():
        assert torch.equal(dict(model.named_buffers())[name], buffer), name
        if name.endswith("num_batches_tracked"):
            assert buffer.item() == 4


def test_exactly_one_update_per_window() -> None:
    model = Mean().build_model()
    step, optimizer = step_of(Mean(), model, 3, micro_batch_size=1)
    updates = [0]
    optimizer.register_step_post_hook(lambda *_: updates.__setitem__(0, updates[0] + 1))
    for _ in range(2):
        samples = batches(Mean(), 1)
        for window in ([next(samples), next(samples), next(samples)], [next(samples), next(samples)]):
            step.run(iter(window))
    assert updates[0] == 4


def test_fp16_skips_are_counted_and_leave_the_weights() -> None:
    class Overflows(Mean):
        def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
            return super().loss(model, batch) * 1e38

    torch.manual_seed(0)
    model = Stack()
    before = copy.deepcopy(model.state_dict())
    step, _ = step_of(Overflows(), model, 1, rate=0.1, precision="fp16", micro_batch_size=8)
    results = [step.run(batches(Mean(), 8)) for _ in range(3)]
    assert [result.skipped for result in results] == [True, True, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_fp16_really_scales_the_loss() -> None:
    torch.manual_seed(0)
    model = Stack()
    expected = copy.deepcopy(model)
    step_of(Mean(), expected, 1)[0].run(batches(Mean(), 8))
    step, _ = step_of(Mean(), model, 1, rate=0.1, precision="fp16", micro_batch_size=8)
    assert step._scaler is not None
    assert step._scaler.is_enabled()
    # The first scale, 65536, is too large for these gradients: it halves until a step holds.
    results = [step.run(batches(Mean(), 8), observe=True)]
    while results[-1].skipped and len(results) < 10:
        results.append(step.run(batches(Mean(), 8), observe=True))
    assert not results[-1].skipped
    assert_equal_gradients(model, gradients(expected), 2e-2)
