"""How far the loss of one optimizer step moves by chance alone: dropout, augmentation, other draws of the data."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, default_collate

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.batch import move_batch
from gputune_tui.trainer.precision import autocast
from gputune_tui.trainer.seeding import seed_everything
from gputune_tui.trainer.workload import AdaptedWorkload

REPEATS = 4
"""Losses under as many seeds: three degrees of freedom."""
SAME_FRACTION = 1e-4
"""Two losses this close under different seeds mean that nothing is drawn; kernels that add atomically stay below."""
DRAW_S = 0.5
"""Samples are fetched for about this long: where one costs seconds, few must do."""
LEAST_SAMPLES = 2


def loss_noise(
    workload: AdaptedWorkload,
    model: nn.Module,
    loader: Any,
    settings: TrainSettings,
    device: torch.device,
    seed: int,
    beat: Callable[[], None],
) -> float | None:
    """Standard deviation of a window's loss over its mean, for the same samples under other seeds.

    Measured on up to one micro-batch and scaled to the window, whose loss is the mean of more samples. It draws from
    the dataset in this process and runs the model forward, so it belongs after everything that is measured; `beat` is
    called with every sample.

    Returns:
        0.0 where nothing is random; None where the data cannot be drawn again or the loss has no scale.
    """
    dataset = getattr(loader, "dataset", None)
    if dataset is None or isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        return None
    indices = _indices(len(dataset), settings.micro_batch_size, seed)
    collate = getattr(loader, "collate_fn", None) or default_collate
    losses: list[float] = []
    for repeat in range(REPEATS):
        seed_everything(seed + 1 + repeat)
        deadline = time.perf_counter() + DRAW_S if repeat == 0 else math.inf
        samples = list(_drawn(dataset, indices, deadline, beat))
        indices = indices[: len(samples)]
        batch = move_batch(collate(samples), device, channels_last=settings.channels_last)
        with autocast(settings.precision, device.type):
            losses.append(float(workload.loss(model, batch).loss.detach()))
        if repeat == 1 and math.isclose(losses[0], losses[1], rel_tol=SAME_FRACTION):
            break
    mean = abs(statistics.fmean(losses))
    if not (math.isfinite(mean) and mean > 0):
        return None
    window_samples = settings.micro_batch_size * settings.accumulation_steps
    return statistics.stdev(losses) / mean * math.sqrt(len(indices) / window_samples)


def _indices(length: int, count: int, seed: int) -> list[int]:
    order: Tensor = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    return [int(index) for index in order[:count]]


def _drawn(dataset: Any, indices: list[int], deadline: float, beat: Callable[[], None]) -> Iterator[Any]:
    for taken, index in enumerate(indices):
        if taken >= LEAST_SAMPLES and time.perf_counter() > deadline:
            return
        beat()
        yield dataset[index]
