"""One optimizer step: phases, counts, skips, and gradients that are the big batch's for any counts and splits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.faults import NoData, SettingsNotApplicable
from gputune_tui.trainer.optimizer import apply_optimizer_implementation
from gputune_tui.trainer.train_step import TrainStep, WindowTotal, batchnorm_note, to_channels_last
from gputune_tui.trainer.workload import LossResult
from tests.trainer.test_same_training import CPU, Stack, assert_equal_gradients, gradients, step_of


class Padded:
    """Batches are lists of sequences; the loss is the mean over their items, none of which may be in a batch."""

    def __init__(self, as_tensor: bool = False) -> None:
        self.as_tensor = as_tensor

    def loss(self, model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Any]:
        items = sum(len(sequence) for sequence in batch)
        mean = model(torch.cat(batch)).float().pow(2).mean()  # NaN without items
        return mean, torch.tensor(items) if self.as_tensor else items

    def batch_size_of(self, batch: list[Tensor]) -> int:
        return len(batch)


def sequences(lengths: list[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(length, 8, generator=generator) for length in lengths]


def split(samples: list[Any], micro: int) -> Iterator[list[Any]]:
    return (samples[start : start + micro] for start in range(0, len(samples), micro))


@given(lengths=st.lists(st.integers(1, 16), min_size=1, max_size=8), micro=st.integers(1, 8), tensor=st.booleans())
@settings(max_examples=40, deadline=None)
def test_any_lengths_split_in_any_way_train_as_one_batch(lengths: list[int], micro: int, tensor: bool) -> None:
    torch.manual_seed(0)
    model = Stack(blocks=1)
    whole = step_of(Padded(), model, 1)[0].run([sequences(lengths)], observe=True)
    again = copy.deepcopy(model)
    parts = -(-len(lengths) // micro)
    step, _ = step_of(Padded(tensor), again, parts + 1, micro_batch_size=micro)
    result = step.run(split(sequences(lengths), micro), observe=True)
    assert_equal_gradients(again, gradients(model), 1e-5)
    assert (result.samples, result.micro_batches) == (len(lengths), parts)
    torch.testing.assert_close(result.loss, whole.loss)
    torch.testing.assert_close(result.gradient_norm, whole.gradient_norm)


@pytest.mark.parametrize("lengths", [[0, 3, 2], [3, 0, 2], [3, 2, 0]])
def test_a_micro_batch_without_items_counts_for_nothing(lengths: list[int]) -> None:
    torch.manual_seed(0)
    model = Stack(blocks=1)
    step_of(Padded(), model, 1)[0].run([sequences(lengths)])
    again = copy.deepcopy(model)
    result = step_of(Padded(), again, 3)[0].run(split(sequences(lengths), 1))
    assert_equal_gradients(again, gradients(model), 1e-5)
    assert torch.isfinite(result.loss)


def test_windows_without_batches_or_items_are_refused() -> None:
    step, _ = step_of(Padded(), Stack(), 2)
    with pytest.raises(NoData, match="no batch"):
        step.run([])
    plain, _ = step_of(Padded(), Stack(), 1)
    with pytest.raises(NoData, match="no batch"):
        plain.run_plain([], lambda: None)
    with pytest.raises(NoData, match="no item"):
        step.run(split(sequences([0, 0]), 1))


def test_equal_micro_batches_cost_no_correction() -> None:
    total = WindowTotal(2)
    for _ in range(2):
        total.add(LossResult(torch.ones((), requires_grad=True), 5))
    assert total.correction() is None
    tail = WindowTotal(4)
    tail.add(LossResult(torch.ones((), requires_grad=True)))
    assert tail.correction() == 4


def test_phases_are_marked_at_their_ends() -> None:
    phases: list[str] = []
    step, _ = step_of(Padded(), Stack(), 2)
    step.run(split(sequences([1, 2]), 1), phases.append)
    assert phases == ["data_wait", "copy", "forward", "backward"] * 2 + ["optimizer"]


def test_tied_and_unused_parameters() -> None:
    model = Stack(blocks=2)
    model.blocks[1].first.weight = model.blocks[0].first.weight
    model.unused = nn.Linear(2, 2)
    step, _ = step_of(Padded(), model, 2, rate=0.1)
    step.run(split(sequences([1, 2]), 1), observe=True)
    assert model.unused.weight.grad is None
    assert model.blocks[1].first.weight is model.blocks[0].first.weight


def test_sparse_gradients_are_corrected_and_measured_like_dense_ones() -> None:
    class Bag:
        def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
            return model(batch).pow(2).mean(), len(batch)

        def batch_size_of(self, batch: Tensor) -> int:
            return len(batch)

    results = {}
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(5, 3, sparse=sparse)
        window = [torch.tensor([1, 1, 2]), torch.tensor([1])]
        result = step_of(Bag(), model, 2)[0].run(window, observe=True)
        assert model.weight.grad is not None
        results[sparse] = (model.weight.grad.to_dense(), result.gradient_norm)
    torch.testing.assert_close(results[True], results[False])


class Scaled(Padded):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def loss(self, model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Any]:
        loss, items = super().loss(model, batch)
        return loss * self.factor, items


@pytest.mark.parametrize("observe", [False, True])
@pytest.mark.parametrize("knob", ["loop", "foreach", "fused"])
def test_skipped_steps_are_told_by_every_implementation(knob: str, observe: bool) -> None:
    torch.manual_seed(0)
    model = Stack()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    apply_optimizer_implementation(optimizer, knob)
    chosen = TrainSettings(precision="fp16", accumulation_steps=2, micro_batch_size=1)
    workload = Scaled(1e38)
    step = TrainStep(_Adapted(workload), model, optimizer, chosen, CPU)
    window = sequences([4, 2])
    assert [step.run(split(window, 1), observe=observe).skipped for _ in range(3)] == [True] * 3
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    workload.factor = 1e-4
    result = step.run(split(window, 1), observe=observe)
    assert not result.skipped
    assert not torch.equal(model.head.weight, before["head.weight"])


class _Adapted:
    def __init__(self, user: Padded) -> None:
        self._user = user

    def loss(self, model: nn.Module, batch: Any) -> LossResult:
        return LossResult(*self._user.loss(model, batch))

    def mean_loss(self, model: nn.Module, batch: Any) -> Tensor:
        return self.loss(model, batch).loss

    def batch_size_of(self, batch: Any) -> int:
        return self._user.batch_size_of(batch)


def test_the_norm_is_that_of_unscaled_gradients() -> None:
    norms = []
    for precision in ("fp32", "fp16"):
        torch.manual_seed(0)
        step, _ = step_of(Scaled(1e-3), Stack(), 2, precision=precision)
        norm = step.run(split(sequences([4, 2]), 1), observe=True).gradient_norm
        assert norm is not None
        norms.append(norm)
    torch.testing.assert_close(norms[1], norms[0], rtol=2e-2, atol=0)


def test_half_models_are_refused_under_fp16_before_any_step() -> None:
    with pytest.raises(SettingsNotApplicable, match="parameters are fp16"):
        step_of(Padded(), Stack().half(), 1, precision="fp16")
    step_of(Padded(), Stack().half(), 1, precision="fp32")


def test_nothing_reads_a_value_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a value was read from the device within a step")

    step, _ = step_of(Padded(as_tensor=True), Stack(), 2)
    window = list(split(sequences([3, 2]), 1))
    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "__index__"):
        monkeypatch.setattr(Tensor, name, refuse)
    step.run(window, observe=True)


def test_channels_last_reaches_weights_and_images() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2), nn.Conv3d(1, 1, 1))
    tied = model[0].weight
    to_channels_last(model)
    assert model[0].weight is tied
    assert tied.is_contiguous(memory_format=torch.channels_last)
    assert not tied.is_contiguous()
    seen: list[Tensor] = []

    class Looks:
        def loss(self, model: nn.Module, batch: Any) -> Tensor:
            seen.append(batch["image"])
            return model[0](batch["image"]).mean()

    step_of(Looks(), nn.Sequential(nn.Conv2d(3, 4, 3)), 1, channels_last=True)[0].run(
        [{"image": torch.zeros(2, 3, 8, 8)}]
    )
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_batchnorm_is_no_large_batch() -> None:
    chosen = TrainSettings(micro_batch_size=8, accumulation_steps=4)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert batchnorm_note(model, chosen) == "BatchNorm sees micro-batch 8"
    assert batchnorm_note(model, TrainSettings(micro_batch_size=32)) is None
    assert batchnorm_note(nn.Sequential(nn.LayerNorm(2)), chosen) is None
    model.eval()
    assert batchnorm_note(model, chosen) is None
