"""Subnormal values are found in a real training step, wherever they arise, and cost it nothing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gputune_tui.trainer.denormals import DenormalWatch

TINY = 1e-40


class Model(nn.Module):
    """Two layers, the first recomputed in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(checkpoint(lambda y: torch.relu(self.first(y)), x, use_reentrant=False))


def step(scale: float = 1.0, model: nn.Module | None = None) -> Tensor:
    torch.manual_seed(0)
    model = model or Model()
    optimizer = torch.optim.AdamW(model.parameters())
    loss = (model(torch.randn(16, 32)) * scale).pow(2).mean()
    loss.backward()
    optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def watched(scale: float = 1.0) -> tuple[float | None, Tensor]:
    watch = DenormalWatch()
    with watch:
        result = step(scale)
    return watch.fraction, result


def test_ordinary_steps_have_none_and_are_not_changed() -> None:
    fraction, result = watched()
    assert fraction == 0
    assert torch.equal(result, step())


def test_gradients_that_vanish_are_found_in_backward_alone() -> None:
    fraction, _ = watched(1e-20)  # the loss is about 1e-40, its gradients are smaller still
    assert fraction is not None
    assert fraction > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_a_cpu_is_slow_at_counts(dtype: torch.dtype) -> None:
    watch = DenormalWatch()
    small = TINY if dtype != torch.float64 else 1e-310
    watch.look([torch.tensor([0.0, 1.0, small, -small], dtype=dtype)])
    assert watch.fraction == 0.5


def test_what_is_no_dense_tensor_of_such_numbers_does_not_count() -> None:
    watch = DenormalWatch()
    sparse = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([TINY]), (2,), check_invariants=True)
    watch.look([None, 3, torch.ones(2, dtype=torch.int64), torch.full((2,), 1e-7, dtype=torch.float16), sparse])
    assert watch.fraction is None


def test_large_tensors_are_sampled_over_all_of_their_length() -> None:
    watch = DenormalWatch()
    values = torch.zeros(1_000_003)
    values[500_000:] = TINY
    watch.look([values, values[:0]])
    assert watch.fraction == pytest.approx(0.5, abs=0.01)
    channels = torch.full((2, 3, 4, 5), TINY).contiguous(memory_format=torch.channels_last)
    watch = DenormalWatch()
    watch.look([channels, channels.permute(3, 2, 1, 0)[1:]])
    assert watch.fraction == 1
