"""The default search space of a device: printed before the first trial, so that nobody has to guess it."""

from __future__ import annotations

from collections.abc import Collection

from gputune_tui.domain.knobs import KnobValue
from gputune_tui.domain.script import ScriptFacts
from gputune_tui.domain.space import SearchSpace, divisors_of
from gputune_tui.errors import UsageError

MICRO_BATCHES = 3
"""The largest divisors of the global batch that are tried."""


def default_space(device_kind: str, global_batch_size: int, effective_cpus: float, is_command: bool) -> SearchSpace:
    """Precision, the largest micro-batches, checkpointing and loader workers.

    Workers are 0 and the effective CPUs: the rest of the range belongs to a search that knows the loader's share.
    A command has no default beyond its placeholders; the caller narrows the space to them.
    """
    precisions: tuple[KnobValue, ...] = ("fp32", "bf16") if device_kind == "cpu" else ("fp32", "tf32", "bf16", "fp16")
    micro_batches = tuple(reversed(divisors_of(global_batch_size)))[:MICRO_BATCHES]
    values: dict[str, tuple[KnobValue, ...]] = {
        "precision": precisions,
        "micro_batch_size": micro_batches,
        "num_workers": tuple(dict.fromkeys((0, max(1, int(effective_cpus))))),
    }
    if not is_command:
        values["activation_checkpointing"] = ("none", "full")
    return SearchSpace(values)


def script_space(device_kind: str, effective_cpus: float, script: ScriptFacts, told: Collection[str]) -> SearchSpace:
    """The same of a script that was looked at: its own values first, without what it cannot be given.

    Args:
        device_kind: "cpu" or "cuda".
        effective_cpus: of the node.
        script: what it does by itself.
        told: the knobs that it has placeholders or flags for.

    Raises:
        UsageError: no knob is left.
    """
    per_rank = script.micro_batch_size * script.accumulation_steps
    space = default_space(device_kind, per_rank, effective_cpus / script.world_size, is_command=False)
    own = script.knobs()
    values = {
        name: tuple(dict.fromkeys((own[name], *choices))) if name in own else choices
        for name, choices in space.values.items()
        if name in told or script.refusal(name) is None
    }
    if not values:
        raise UsageError("no knob of the default space can be set in this script; say which values to try with --space")
    return SearchSpace(values)
