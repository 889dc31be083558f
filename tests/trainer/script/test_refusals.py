"""Loops that smaller batches would change are stopped with the reason; what they may do by the way is left to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gputune_tui.domain.job import ScriptOrder
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.script.injection import Injection
from gputune_tui.trainer.script.loaders import LoaderWatch
from gputune_tui.trainer.script.patches import Patches
from tests.trainer.forked import in_fork

SETTINGS = TrainSettings(micro_batch_size=2, accumulation_steps=2)
Loop = Callable[[Any, nn.Module, Any], None]


class Refused(Exception):
    """Ends a loop."""


def refuse(reason: str) -> NoReturn:
    raise Refused(reason)


def run(loop: Loop, **loader_arguments: Any) -> str:
    """Run a loop in batches of 2 in place of 4; why it was refused, or nothing."""

    def trial() -> str:
        site = None
        for order in (None, ScriptOrder(("micro_batch_size", "accumulation_steps"), "site", "loader")):
            patches = Patches()
            watch = LoaderWatch({}, None, refuse)
            if order is None:
                watch.install(patches, watch_batches=False)
            else:
                order = ScriptOrder(order.injected, site, "loader")
                Injection(SETTINGS, order, "cpu", refuse, lambda _text: None).install(patches, watch_batches=True)
            loader = DataLoader(TensorDataset(torch.ones(16, 3)), batch_size=4, **loader_arguments)
            if order is None:
                site = watch.loaders[0].site
                patches.undo()
                continue
            model = nn.Linear(3, 1)
            try:
                loop(loader, model, torch.optim.SGD(model.parameters(), lr=0.1))
            except Refused as refused:
                return str(refused)
        return ""

    return str(in_fork(trial))


def step(model: nn.Module, x: Any) -> None:
    model(x).mean().backward()


def plain(loader: Any, model: nn.Module, optimizer: Any) -> None:
    for _ in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            step(model, x)
            optimizer.step()


def after_the_step(loader: Any, model: nn.Module, optimizer: Any) -> None:
    for (x,) in loader:
        step(model, x)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        model.zero_grad()


def broken_off(loader: Any, model: nn.Module, optimizer: Any) -> None:
    for _ in range(2):
        for number, (x,) in enumerate(loader):
            if number == 3:
                break
            optimizer.zero_grad()
            step(model, x)
            optimizer.step()


def leaving_batches_out(loader: Any, model: nn.Module, optimizer: Any) -> None:
    for _ in range(2):
        for number, (x,) in enumerate(loader):
            if number == 3:
                continue
            optimizer.zero_grad()
            step(model, x)
            optimizer.step()


def discarding(loader: Any, model: nn.Module, optimizer: Any) -> None:
    for number, (x,) in enumerate(loader):
        step(model, x)
        if number == 1:
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()


def clearing_by_hand(loader: Any, model: nn.Module, optimizer: Any) -> None:
    for (x,) in loader:
        for parameter in model.parameters():
            parameter.grad = None
        step(model, x)
        optimizer.step()


def changing_gradients(loader: Any, model: nn.Module, optimizer: Any) -> None:
    for (x,) in loader:
        optimizer.zero_grad()
        step(model, x)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)
        optimizer.step()


def by_closure(loader: Any, model: nn.Module, optimizer: Any) -> None:
    for (x,) in loader:
        optimizer.step(lambda x=x: step(model, x))


@pytest.mark.parametrize("loop", [plain, after_the_step])
def test_ordinary_loops_are_run(loop: Loop) -> None:
    assert run(loop) == ""


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (broken_off, "leaves its loader before the end"),
        (leaving_batches_out, "does not step its optimizer once for each batch"),
        (discarding, "clears gradients after a backward pass without a step"),
        (clearing_by_hand, "clears or changes gradients by hand"),
        (changing_gradients, "clears or changes gradients by hand"),
        (by_closure, "closure"),
    ],
)
def test_loops_that_would_change_are_refused(loop: Loop, words: str) -> None:
    assert words in run(loop)


def test_validation_between_steps_is_no_training() -> None:
    def loop(loader: Any, model: nn.Module, optimizer: Any) -> None:
        held_out = DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=4)
        for (x,) in loader:
            optimizer.zero_grad()
            step(model, x)
            optimizer.step()
            with torch.no_grad():
                assert [len(y) for (y,) in held_out] == [4, 4]

    assert run(loop) == ""


def test_the_training_loader_may_serve_to_evaluate() -> None:
    def loop(loader: Any, model: nn.Module, optimizer: Any) -> None:
        next(iter(loader))
        for _ in range(2):
            plain(loader, model, optimizer)
            with torch.no_grad():
                assert sum(len(x) for (x,) in loader) == 16

    assert run(loop) == ""


def test_schedules_count_whole_steps() -> None:
    def loop(loader: Any, model: nn.Module, optimizer: Any) -> None:
        by_step = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))
        by_epoch = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        assert len(loader) == 4
        for epoch in range(2):
            for (x,) in loader:
                optimizer.zero_grad()
                step(model, x)
                optimizer.step()
                by_step.step()
            by_epoch.step()
            assert by_step.last_epoch == 4 * (epoch + 1)
            assert by_epoch.last_epoch == epoch + 1

    assert run(loop) == ""


def test_a_dropped_last_batch_stays_dropped() -> None:
    def loop(loader: Any, model: nn.Module, optimizer: Any) -> None:
        sizes = []
        for (x,) in loader:
            sizes.append(len(x))
            optimizer.zero_grad()
            step(model, x)
            optimizer.step()
        assert sizes == [2] * 8

    assert run(loop, drop_last=True) == ""


def test_averages_of_the_weights_are_taken_once_a_step() -> None:
    def loop(loader: Any, model: nn.Module, optimizer: Any) -> None:
        average = torch.optim.swa_utils.AveragedModel(model)

        class Own(torch.optim.lr_scheduler.LRScheduler):
            calls = 0

            def step(self, epoch: int | None = None) -> None:
                self.calls += 1

        schedules = [Own(optimizer), Own(optimizer)]
        began = [schedule.calls for schedule in schedules]
        for (x,) in loader:
            optimizer.zero_grad()
            step(model, x)
            optimizer.step()
            average.update_parameters(model)
            for schedule in schedules:
                schedule.step()
        assert int(average.n_averaged) == 4
        assert [schedule.calls - before for schedule, before in zip(schedules, began, strict=True)] == [4, 4]

    assert run(loop) == ""
