"""Training written by hand in plain torch, as a user has it: what a trial's figure is held against.

Run: python -m tests.benchmarks.by_hand NAME SECONDS     prints samples/s of a whole process
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler


@dataclass(frozen=True)
class Case:
    """A workload and how it is trained."""

    module: str
    options: dict[str, str]
    file: str
    """As it is named to a trial."""
    batch_size: int


CASES = {
    "lm": Case("workloads.lm", {"size": "tiny"}, "lm", 8),
    "vision": Case("workloads.vision", {"size": "tiny"}, "vision", 16),
    "1ms": Case("tests.benchmarks.one_ms", {}, "tests/benchmarks/one_ms.py", 32),
}
WARMUP_STEPS = 20


class Training:
    """The objects of a training loop."""

    def __init__(self, workload: Any, model: Any, optimizer: torch.optim.Optimizer, loader: Any) -> None:
        self._workload = workload
        self._model = model
        self._optimizer = optimizer
        self._loader = loader
        self._batches: Iterator[Any] = iter(loader)
        self._kept: tuple[Any, Any] | None = None
        """The last batch and loss. The variables of a loop that goes on keep them, as a trial does: what is freed
        between two blocks decides how much memory the next one has to ask the kernel for."""

    def steps(self, count: int) -> tuple[int, float]:
        """Run so many optimizer steps; gives the samples and the seconds they took."""
        workload, model, optimizer = self._workload, self._model, self._optimizer
        batch, loss = self._kept or (None, None)
        self._kept = None
        samples = 0
        begin = time.perf_counter()
        for _ in range(count):
            try:
                batch = next(self._batches)
            except StopIteration:
                self._batches = iter(self._loader)
                batch = next(self._batches)
            optimizer.zero_grad(set_to_none=True)
            loss = workload.loss(model, batch)
            (loss[0] if isinstance(loss, tuple) else loss).backward()
            optimizer.step()
            samples += len(batch[-1]) if isinstance(batch, list) else len(batch)
        elapsed_s = time.perf_counter() - begin
        self._kept = batch, loss
        return samples, elapsed_s


def training_of(case: Case, seed: int = 0) -> Training:
    """A whole training loop of its own."""
    torch.manual_seed(seed)
    workload = importlib.import_module(case.module).Workload(**case.options)
    model = workload.build_model()
    model.train()
    optimizer = workload.build_optimizer(list(model.parameters()))
    dataset = workload.build_dataset()
    order = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
    return Training(workload, model, optimizer, DataLoader(dataset, case.batch_size, sampler=order))


def main(name: str, seconds: str) -> int:
    """Train for so many seconds after a warm-up."""
    training = training_of(CASES[name])
    training.steps(WARMUP_STEPS)
    samples, elapsed_s = 0, 0.0
    while elapsed_s < float(seconds):
        more, took_s = training.steps(10)
        samples, elapsed_s = samples + more, elapsed_s + took_s
    print(samples / elapsed_s)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
