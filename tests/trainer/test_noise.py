"""The noise of a loss is measured where something is random, and unknown where the data cannot be drawn again."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer import noise
from gputune_tui.trainer.noise import loss_noise
from gputune_tui.trainer.workload import AdaptedWorkload

CPU = torch.device("cpu")


class Samples(Dataset[Tensor]):
    """Fixed samples, each with `jitter` added anew at every look."""

    def __init__(self, jitter: float = 0.0, wait_s: float = 0.0) -> None:
        self.jitter = jitter
        self.wait_s = wait_s
        self.looks = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        self.looks += 1
        time.sleep(self.wait_s)
        return torch.full((4,), 1.0 + index / 64) + self.jitter * torch.randn(4)


class Streamed(IterableDataset[Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.ones(64, 4))


class Squares:
    """The loss is the mean square of what comes through the model."""

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()


class Through(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(x * self.scale)


def measured(
    dataset: Any, model: nn.Module | None = None, micro_batch_size: int = 16, accumulation_steps: int = 1
) -> float | None:
    settings = TrainSettings(micro_batch_size=micro_batch_size, accumulation_steps=accumulation_steps)
    workload = AdaptedWorkload(Squares(), "wl", "Workload", "")
    loader = DataLoader(dataset, batch_size=micro_batch_size)
    return loss_noise(workload, model or Through(), loader, settings, CPU, 0, lambda: None)


def test_a_step_without_chance_has_no_noise_and_costs_two_draws() -> None:
    dataset = Samples()
    assert measured(dataset) == 0.0
    assert dataset.looks == 32


@pytest.mark.parametrize(("dataset", "model"), [(Samples(0.5), Through()), (Samples(), Through(0.3))])
def test_augmentation_and_dropout_are_seen(dataset: Samples, model: nn.Module) -> None:
    found = measured(dataset, model)
    assert found is not None
    assert 0.005 < found < 0.5
    assert dataset.looks == 64


def test_the_window_averages_over_its_micro_batches() -> None:
    one, four = measured(Samples(0.5)), measured(Samples(0.5), accumulation_steps=4)
    assert one is not None
    assert four == pytest.approx(one / 2)


def test_numpys_generator_counts_too() -> None:
    numpy = pytest.importorskip("numpy")

    class Drawn(Samples):
        def __getitem__(self, index: int) -> Tensor:
            return super().__getitem__(index) * float(numpy.random.uniform(0.5, 1.5))

    found = measured(Drawn())
    assert found is not None
    assert found > 0.005


def test_slow_samples_are_drawn_sparingly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "DRAW_S", 0.0)
    dataset = Samples(0.5, wait_s=0.001)
    assert measured(dataset) is not None
    assert dataset.looks == noise.LEAST_SAMPLES * noise.REPEATS


def test_data_that_cannot_be_drawn_again_leave_it_unknown() -> None:
    assert measured(Streamed()) is None
    workload = AdaptedWorkload(Squares(), "wl", "Workload", "")
    settings = TrainSettings(micro_batch_size=16)
    assert loss_noise(workload, Through(), [torch.ones(16, 4)], settings, CPU, 0, lambda: None) is None
