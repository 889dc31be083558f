"""The optimizer knob: the implementation asked for is the one that runs, and the result is the same."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gputune_tui.trainer.faults import SettingsNotApplicable
from gputune_tui.trainer.optimizer import apply_optimizer_implementation, optimizer_options

CLASSES = [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad]
FUNCTIONS = {"loop": "_single_tensor_", "foreach": "_multi_tensor_", "fused": "_fused_"}


class Derived(torch.optim.AdamW):
    """A user's subclass whose constructor takes something else."""

    def __init__(self, model: nn.Module, rate: float) -> None:
        super().__init__(model.parameters(), lr=rate)


class Alternating(torch.optim.LBFGS):
    """A user's optimizer that needs a closure."""


class Own(torch.optim.Optimizer):
    """A user's optimizer without a choice of implementations."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        pass


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> list[torch.Tensor]:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.linspace(-1, 1, 12).reshape(3, 4)).pow(2).sum().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def record_calls(cls: type[torch.optim.Optimizer], patch: pytest.MonkeyPatch) -> list[str]:
    """Names of the implementation functions that run from here on."""
    base = next(c for c in cls.__mro__ if c.__module__.startswith("torch.optim."))
    module = sys.modules["torch.optim.adam" if issubclass(base, torch.optim.Adam) else base.__module__]
    calls: list[str] = []

    def recording(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def record(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return function(*args, **kwargs)

        return record

    for name, function in inspect.getmembers(module, inspect.isfunction):
        if name.startswith(tuple(FUNCTIONS.values())):
            patch.setattr(module, name, recording(name, function))
    return calls


@pytest.mark.parametrize("knob", FUNCTIONS)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_the_chosen_implementation_runs(cls: Any, knob: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    plain = copy.deepcopy(model)
    expected = stepped(plain, cls(plain.parameters(), lr=0.1))
    optimizer = cls(model.parameters(), lr=0.1)
    apply_optimizer_implementation(optimizer, knob)
    calls = record_calls(cls, monkeypatch)
    torch.testing.assert_close(stepped(model, optimizer), expected)
    assert calls
    assert all(name.startswith(FUNCTIONS[knob]) for name in calls)


@pytest.mark.parametrize("knob", FUNCTIONS)
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_an_optimizer_that_has_stepped_goes_on(cls: Any, knob: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    plain = copy.deepcopy(model)
    expected = stepped(plain, cls(plain.parameters(), lr=0.1), steps=6)
    optimizer = cls(model.parameters(), lr=0.1)
    stepped(model, optimizer)
    apply_optimizer_implementation(optimizer, knob)
    torch.testing.assert_close(stepped(model, optimizer), expected)


def test_counters_made_by_the_constructor_are_those_of_the_fused_kernels() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        parameter = nn.Parameter(torch.zeros(2))
        optimizer = torch.optim.Adagrad([parameter])
        assert optimizer.state[parameter]["step"].dtype == torch.float64
        apply_optimizer_implementation(optimizer, "fused")
        assert optimizer.state[parameter]["step"].dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_groups_hooks_and_schedulers_stay_with_the_optimizer() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[1].parameters(), "weight_decay": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    apply_optimizer_implementation(optimizer, "fused")
    stepped(model, optimizer, steps=1)
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.05, 0.01])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0, 0.2]


def test_a_users_subclass_is_switched_without_its_constructor() -> None:
    model = nn.Linear(4, 2)
    optimizer = Derived(model, 0.1)
    apply_optimizer_implementation(optimizer, "fused")
    assert optimizer.param_groups[0]["fused"] is True
    stepped(model, optimizer)


@pytest.mark.parametrize("knob", FUNCTIONS)
def test_a_fused_optimizer_is_switched_back_with_what_the_scaler_goes_by(knob: str) -> None:
    optimizer = torch.optim.Adam(nn.Linear(4, 2).parameters(), fused=True)
    apply_optimizer_implementation(optimizer, knob)
    assert getattr(optimizer, "_step_supports_amp_scaling", False) is (knob == "fused")


def test_default_leaves_the_workloads_choice() -> None:
    optimizer = torch.optim.Adam(nn.Linear(4, 2).parameters(), foreach=True)
    apply_optimizer_implementation(optimizer, "default")
    assert optimizer.param_groups[0]["foreach"] is True
    assert optimizer_options("default") == {}


def test_options_are_what_the_constructors_take() -> None:
    for knob in FUNCTIONS:
        torch.optim.AdamW(nn.Linear(2, 2).parameters(), **optimizer_options(knob))


@pytest.mark.parametrize(
    ("build", "knob", "words"),
    [
        (torch.optim.RMSprop, "fused", "RMSprop has no choice of a fused implementation"),
        (torch.optim.SparseAdam, "foreach", "SparseAdam has no choice"),
        (torch.optim.SparseAdam, "loop", "SparseAdam has no choice"),
        (Own, "fused", "Own has no choice"),
        (torch.optim.LBFGS, "default", "needs a closure"),
        (Alternating, "loop", "needs a closure"),
        (lambda p: torch.optim.Adam(p, differentiable=True), "fused", "cannot run optimizer=fused here"),
        (lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)), "foreach", "cannot run optimizer=foreach here"),
    ],
)
def test_what_does_not_exist_is_refused_in_words(build: Any, knob: str, words: str) -> None:
    optimizer = build(nn.Linear(4, 2).parameters())
    with pytest.raises(SettingsNotApplicable, match=words):
        apply_optimizer_implementation(optimizer, knob)


def test_fused_over_complex_parameters_is_refused_before_anything_is_changed() -> None:
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    with pytest.raises(SettingsNotApplicable, match="floating point"):
        apply_optimizer_implementation(optimizer, "fused")
    assert optimizer.param_groups[0]["fused"] is None
