"""The `optimizer` knob: which implementation of the workload's own optimizer runs; never its algorithm."""

from __future__ import annotations

import torch

from gputune_tui.trainer.faults import SettingsNotApplicable

IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


def apply_optimizer_implementation(optimizer: torch.optim.Optimizer, knob: str) -> torch.optim.Optimizer:
    """The optimizer with that implementation; "default" leaves the workload's own choice.

    The optimizer is built anew from its own class, parameter groups and defaults, since the fused implementations
    prepare themselves in the constructor (device checks, step counters on the device).

    Raises:
        SettingsNotApplicable: this class has no such implementation, or it needs a closure.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise SettingsNotApplicable("LBFGS evaluates the loss several times a step; it cannot be measured by this tool")
    if knob == "default":
        return optimizer
    wanted = IMPLEMENTATIONS[knob]
    missing = [name for name, value in wanted.items() if value and name not in optimizer.defaults]
    if missing:
        raise SettingsNotApplicable(f"{type(optimizer).__name__} has no {knob} implementation")
    flags = {name: value for name, value in wanted.items() if name in optimizer.defaults}
    groups = [{**group, **flags} for group in optimizer.param_groups]
    defaults = {**optimizer.defaults, **flags}
    try:
        return type(optimizer)(groups, **_constructor_arguments(type(optimizer), defaults))
    except (TypeError, RuntimeError, ValueError) as error:
        raise SettingsNotApplicable(f"{type(optimizer).__name__} cannot run {knob} here: {error}") from error


def _constructor_arguments(cls: type[torch.optim.Optimizer], defaults: dict[str, object]) -> dict[str, object]:
    """Those defaults that are arguments of the constructor (AdamW keeps Adam's `decoupled_weight_decay` among them)."""
    import inspect

    names = inspect.signature(cls.__init__).parameters
    return {name: value for name, value in defaults.items() if name in names}
