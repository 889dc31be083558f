"""The `optimizer` knob: which implementation of the workload's own optimizer runs; never its algorithm."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from gputune_tui.trainer.faults import SettingsNotApplicable


def optimizer_options(knob: str) -> dict[str, bool]:
    """Constructor arguments of a torch optimizer for a value of the knob; "default" adds none."""
    options: dict[str, dict[str, bool]] = {
        "default": {},
        "loop": {"foreach": False, "fused": False},
        "foreach": {"foreach": True, "fused": False},
        "fused": {"foreach": False, "fused": True},
    }
    return options[knob]


def apply_optimizer_implementation(optimizer: torch.optim.Optimizer, knob: str) -> None:
    """Switch a built optimizer to that implementation in place; "default" leaves the workload's own choice.

    In place, since schedulers, hooks and the workload itself may hold the optimizer. Whether the implementation runs
    on these parameters is tried on one element of each kind, with the optimizer's own options.

    Raises:
        SettingsNotApplicable: this optimizer has no such implementation here, or its step needs a closure.
    """
    _refuse_closures(optimizer)
    if knob == "default":
        return
    name = type(optimizer).__name__
    supported = {key: value for key, value in optimizer_options(knob).items() if key in optimizer.defaults}
    base = _torch_class(optimizer)
    if base is None or not supported or (knob != "loop" and knob not in supported):
        raise SettingsNotApplicable(f"{name} has no choice of a {knob} implementation; use optimizer=default")
    for group in optimizer.param_groups:
        _try(base, {**group, **supported}, f"{name} cannot run optimizer={knob} here")
    for group in (optimizer.defaults, *optimizer.param_groups):
        group.update(supported)
    fused = knob == "fused"
    # What the constructors set for fused=True: the gradient scaler leaves unscaling and skipping to the fused kernels,
    # and must not leave it to any other.
    optimizer._step_supports_amp_scaling = fused
    _move_step_counters(optimizer, fused)


def _refuse_closures(optimizer: torch.optim.Optimizer) -> None:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SettingsNotApplicable(
            f"{type(optimizer).__name__} evaluates the loss several times in a step (it needs a closure), so one step "
            "is no fixed work; give the workload another optimizer"
        )


def _torch_class(optimizer: torch.optim.Optimizer) -> type[torch.optim.Optimizer] | None:
    """The optimizer of torch's own that this is or derives from."""
    own = (cls for cls in type(optimizer).__mro__ if cls.__module__.startswith("torch.optim."))
    found = next(own, None)
    return None if found in (None, torch.optim.Optimizer) else found


def _try(base: type[torch.optim.Optimizer], group: dict[str, Any], words: str) -> None:
    """Take a step on one element of each kind of parameter in the group.

    Raises:
        SettingsNotApplicable: torch refuses.
    """
    accepted = inspect.signature(base.__init__).parameters
    options = {key: value for key, value in group.items() if key in accepted and key != "params"}
    for device, dtype in {(p.device, p.dtype) for p in group["params"]}:
        parameter = torch.nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
        parameter.grad = torch.zeros_like(parameter)
        try:
            base([parameter], **options).step()
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            raise SettingsNotApplicable(f"{words}: {error}") from error


def _move_step_counters(optimizer: torch.optim.Optimizer, fused: bool) -> None:
    """Put step counters that exist already (Adagrad makes them in its constructor) where the implementation has them.

    torch.optim: fused kernels count in float32 on the parameter's device, the others on the host.
    """
    for group in optimizer.param_groups:
        if group.get("capturable"):
            continue
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            step = state.get("step")
            if isinstance(step, Tensor):
                state["step"] = step.to(parameter.device, torch.float32) if fused else step.cpu()
