"""The longest batch and the evaluation step leave the training as it was, and reach the moment they are meant to."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from gputune_tui.domain.protocol import Note, Phase
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.device import CpuDevice
from gputune_tui.trainer.train_step import TrainStep
from gputune_tui.trainer.workload import AdaptedWorkload
from gputune_tui.trainer.worst_case import WorstCase
from tests.trainer.scripted import Recorder


class Plain:
    """Dropout draws, BatchNorm keeps statistics, and one part stays in evaluation mode."""

    def __init__(self) -> None:
        self.saw_gradients: list[bool] = []
        self.lengths: list[int] = []

    def build_model(self) -> Any:
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        model[2].eval()
        return model

    def loss(self, model: Any, batch: Any) -> Any:
        self.saw_gradients.append(next(model.parameters()).grad is not None)
        self.lengths.append(len(batch))
        return model(batch).pow(2).mean()


class Longest(Plain):
    def largest_batch(self, n: int) -> Any:
        random.random()
        return torch.randn(n, 4) * 100


class Evaluated(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.evaluated: list[Any] = []

    def eval_step(self, model: Any, batch: Any) -> None:
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        model(batch + torch.rand(1))
        self.evaluated.append(batch)


class Both(Longest, Evaluated):
    pass


class Rig:
    """A model that has made two steps, as a trial has when its worst case is tried."""

    def __init__(self, user: Any, precision: str = "fp32", accumulation: int = 1) -> None:
        torch.manual_seed(0)
        self.user = user
        self.workload = AdaptedWorkload(user, "wl", "Workload", "")
        self.model = user.build_model()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.settings = TrainSettings(
            micro_batch_size=8, accumulation_steps=accumulation, precision=precision, activation_checkpointing="none"
        )
        self.step = TrainStep(self.workload, self.model, self.optimizer, self.settings, torch.device("cpu"))
        self.events = Recorder()
        self.reports = 0
        self.worst = WorstCase(
            self.workload, self.model, self.step, self.settings, CpuDevice(), self.events, self._report
        )
        self.windows = self.worst.watched(self._windows())
        for _ in range(2):
            self.step.run(next(self.windows))

    def _report(self) -> None:
        self.reports += 1

    def _windows(self) -> Iterator[Iterator[Any]]:
        while True:
            yield iter([torch.randn(8, 4) for _ in range(self.settings.accumulation_steps)])

    def state(self) -> list[Any]:
        """Everything that the rest of the training depends on."""
        moments = [value for one in self.optimizer.state.values() for value in one.values()]
        values = [*self.model.state_dict().values(), *moments, torch.get_rng_state()]
        return [value.clone() for value in values] + [
            random.getstate(),
            [module.training for module in self.model.modules()],
        ]

    def phases(self) -> list[str]:
        return [event.name for event in self.events.events if isinstance(event, Phase)]


def same(before: list[Any], after: list[Any]) -> bool:
    return all(torch.equal(a, b) if torch.is_tensor(a) else a == b for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("user", "precision", "accumulation"),
    [(Longest, "fp32", 2), (Longest, "fp16", 1), (Evaluated, "bf16", 1), (Both, "fp16", 4)],
)
def test_the_training_is_afterwards_what_it_was(user: type[Any], precision: str, accumulation: int) -> None:
    rig = Rig(user(), precision, accumulation)
    before = rig.state()
    assert rig.worst.run()
    assert same(before, rig.state())


def test_a_workload_without_either_is_left_alone() -> None:
    rig = Rig(Plain())
    assert not rig.worst.run()
    assert rig.phases() == []


def test_both_are_told_as_phases_of_their_own_and_reported() -> None:
    rig = Rig(Both())
    rig.worst.run()
    assert rig.phases() == ["largest_batch", "evaluation"]
    assert rig.reports == 2


@pytest.mark.parametrize(("accumulation", "expected"), [(1, [False]), (2, [False, True]), (4, [False, True])])
def test_the_longest_batch_meets_the_gradients_of_an_earlier_one(accumulation: int, expected: list[bool]) -> None:
    user = Longest()
    rig = Rig(user, accumulation=accumulation)
    user.saw_gradients.clear()
    rig.worst.run()
    assert user.saw_gradients == expected
    assert all(parameter.grad is None for parameter in rig.model.parameters())


def test_what_is_evaluated_is_the_longest_batch_or_one_of_the_data() -> None:
    rig = Rig(Both())
    rig.worst.run()
    assert rig.user.evaluated[0].abs().max() > 20
    rig = Rig(Evaluated())
    rig.worst.run()
    assert rig.user.evaluated[0].shape == (8, 4)


def test_a_longest_batch_of_another_size_is_said() -> None:
    class Short(Plain):
        def largest_batch(self, n: int) -> Any:
            return torch.ones(n // 2, 4)

    rig = Rig(Short())
    rig.worst.run()
    assert Note("largest_batch(8) holds 4 samples") in rig.events.events


def test_after_a_failure_the_training_mode_and_statistics_are_back() -> None:
    class Broken(Plain):
        def eval_step(self, model: Any, batch: Any) -> None:
            model[1].train()
            model(batch)
            raise RuntimeError("boom")

    rig = Rig(Broken())
    before = rig.state()
    with pytest.raises(RuntimeError, match="boom"):
        rig.worst.run()
    assert same(before, rig.state())
