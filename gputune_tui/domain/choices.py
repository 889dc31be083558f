"""The values that a knob is stepped through by hand, and the settings that a step leads to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gputune_tui.domain.knobs import KnobValue
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import divisors_of

BATCH = "micro_batch_size"
"""Stands for both batch knobs: their product is the global batch, so that one follows from the other."""


@dataclass(frozen=True)
class Ground:
    """What the choices depend on."""

    device_kind: str
    """"cpu" or "cuda"."""
    global_batch_size: int
    effective_cpus: float | None


def knobs_for(ground: Ground) -> tuple[str, ...]:
    """The knobs that can make a difference on this device, in the order in which one would try them."""
    names = ["precision", BATCH, "activation_checkpointing", "num_workers", "prefetch_factor", "persistent_workers"]
    names += ["optimizer", "compile", "channels_last"]
    names += ["flush_denormal"] if ground.device_kind == "cpu" else ["pin_memory"]
    return tuple(names)


def choices(name: str, settings: TrainSettings, ground: Ground) -> tuple[KnobValue, ...]:
    """The values of one knob, the one it has included; a single one where it cannot differ as things stand.

    Worker choices run to twice the effective CPUs (DESIGN section 10).
    """
    on_cpu = ground.device_kind == "cpu"
    workers = int(2 * ground.effective_cpus) if ground.effective_cpus else 8
    table: dict[str, tuple[KnobValue, ...]] = {
        "precision": ("fp32", "bf16", "fp16") if on_cpu else ("fp32", "tf32", "bf16", "fp16"),
        BATCH: divisors_of(ground.global_batch_size),
        "activation_checkpointing": ("none", "selective", "every:2", "full"),
        "num_workers": tuple(range(max(1, workers) + 1)),
        "prefetch_factor": (2, 4, 8) if settings.num_workers else (None,),
        "persistent_workers": (False, True) if settings.num_workers else (False,),
        "optimizer": ("default", "loop", "foreach", "fused"),
        "compile": ("none", "default", "reduce-overhead", "max-autotune"),
        "channels_last": (False, True),
        "flush_denormal": (False, True) if on_cpu else (False,),
        "pin_memory": (False,) if on_cpu else (False, True),
    }
    values = table[name]
    present: KnobValue = getattr(settings, name)
    if present in values:
        return values
    if all(isinstance(value, int) for value in (*values, present)):
        return tuple(sorted((*values, present)))  # type: ignore[type-var]  # they are all whole numbers
    return (*values, present)


def with_value(settings: TrainSettings, name: str, value: KnobValue, ground: Ground) -> TrainSettings | None:
    """The settings with one knob changed, in canonical form; None where the batch is no divisor of the global one."""
    if name == BATCH:
        if not isinstance(value, int) or value < 1 or ground.global_batch_size % value:
            return None
        changed = replace(settings, micro_batch_size=value, accumulation_steps=ground.global_batch_size // value)
    else:
        changed = replace(settings, **{name: value})  # type: ignore[arg-type]  # the table's values fit
    return changed.canonical(ground.device_kind)


def stepped(settings: TrainSettings, name: str, step: int, ground: Ground) -> TrainSettings:
    """The settings after `step` (+1 or -1) along the knob's choices; at an end they stay as they are."""
    values = choices(name, settings, ground)
    place = values.index(getattr(settings, name)) + step
    if not 0 <= place < len(values):
        return settings
    return with_value(settings, name, values[place], ground) or settings
