"""A workload whose optimizer step takes about a millisecond: what a trial adds to each step shows most here."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

WIDTH = 256


class Numbers(Dataset[Tensor]):
    """Random rows, made once."""

    def __init__(self) -> None:
        self.rows = torch.randn(4096, WIDTH, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]


class Workload:
    """A perceptron of three layers."""

    global_batch_size = 32

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
        )

    def build_dataset(self) -> Dataset[Tensor]:
        return Numbers()

    def build_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).pow(2).mean()
