"""The table of knobs: name, values, baseline and how a value is read from text. One row each, read by all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gputune_tui.errors import UsageError

KnobValue = str | int | bool | None


@dataclass(frozen=True)
class Knob:
    """One knob of a trial."""

    name: str
    baseline: KnobValue
    """The value when nothing is said; None where it is derived or does not apply."""
    values: str
    """The values in words, for messages and help."""
    read: Callable[[str], KnobValue]
    """Read one value from text; raises ValueError for anything else."""
    help: str = ""


def _one_of(*choices: str) -> Callable[[str], KnobValue]:
    def read(text: str) -> KnobValue:
        if text not in choices:
            raise ValueError(text)
        return text

    return read


def _integer(low: int) -> Callable[[str], KnobValue]:
    def read(text: str) -> KnobValue:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < low:
            raise ValueError(text)
        return int(text)

    return read


def _only(value: KnobValue, text: str) -> Callable[[str], KnobValue]:
    """Reader of a knob of which this version measures one value alone."""

    def read(given: str) -> KnobValue:
        if given != text:
            raise ValueError(given)
        return value

    return read


def _boolean(text: str) -> KnobValue:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _prefetch(text: str) -> KnobValue:
    return None if text in ("null", "none") else _integer(1)(text)


def _checkpointing(text: str) -> KnobValue:
    if text in ("none", "full", "selective") or re.fullmatch(r"(every|segments):[1-9]\d{0,5}", text):
        return text
    raise ValueError(text)


def _python(text: str) -> KnobValue:
    if not text:
        raise ValueError(text)
    return None if text == "null" else text


_ONE_RANK = "trials of several ranks are not part of this version"

KNOBS: tuple[Knob, ...] = (
    Knob(
        "precision",
        "fp32",
        "fp32, tf32, bf16, fp16",
        _one_of("fp32", "tf32", "bf16", "fp16"),
        "number format of the forward pass (torch.amp autocast; fp16 with a gradient scaler)",
    ),
    Knob("micro_batch_size", None, "a whole number from 1", _integer(1), "samples per forward pass and rank"),
    Knob("accumulation_steps", 1, "a whole number from 1", _integer(1), "forward passes per optimizer step"),
    Knob(
        "activation_checkpointing",
        "none",
        "none, full, every:N, segments:N, selective",
        _checkpointing,
        "recompute activations in the backward pass instead of keeping them",
    ),
    Knob(
        "optimizer",
        "default",
        "default, loop, foreach, fused",
        _one_of("default", "loop", "foreach", "fused"),
        "implementation of the optimizer step, never its algorithm",
    ),
    Knob("channels_last", False, "false, true", _boolean, "memory format of convolution weights and images"),
    Knob(
        "compile",
        "none",
        "none, default, reduce-overhead, max-autotune",
        _one_of("none", "default", "reduce-overhead", "max-autotune"),
        "torch.compile mode of the model",
    ),
    Knob("flush_denormal", False, "false, true", _boolean, "treat denormal numbers as zero (cpu)"),
    Knob("num_workers", 0, "a whole number from 0", _integer(0), "processes that load data"),
    Knob("prefetch_factor", None, "null or a whole number from 1", _prefetch, "batches each worker keeps ready"),
    Knob("pin_memory", None, "false, true", _boolean, "page-locked batches (false on cpu, true on cuda)"),
    Knob("persistent_workers", False, "false, true", _boolean, "keep loader workers alive between epochs"),
    Knob("data_staging", "none", "none", _only("none", "none"), "where the data is copied to before training"),
    Knob("python", None, "null (this interpreter) or a path", _python, "interpreter that runs the trial"),
    Knob("world_size", 1, "1, or the ranks that a command starts by itself", _integer(1), "ranks"),
    Knob("strategy", "ddp", f"ddp ({_ONE_RANK})", _only("ddp", "ddp"), "how ranks share the work"),
    Knob("gradient_compression", "none", f"none ({_ONE_RANK})", _only("none", "none"), "how gradients are exchanged"),
    Knob("bucket_size_mib", 25, f"25 ({_ONE_RANK})", _only(25, "25"), "gradient bucket of one exchange"),
    Knob("no_sync", True, f"true ({_ONE_RANK})", _only(True, "true"), "exchange once per window"),
    Knob("static_graph", False, f"false ({_ONE_RANK})", _only(False, "false"), "promise an unchanging graph to DDP"),
)

KNOB_BY_NAME: dict[str, Knob] = {knob.name: knob for knob in KNOBS}


def knob_named(name: str) -> Knob:
    """The knob of that name.

    Raises:
        UsageError: there is none; the nearest names are offered.
    """
    if name in KNOB_BY_NAME:
        return KNOB_BY_NAME[name]
    import difflib

    near = difflib.get_close_matches(name, KNOB_BY_NAME, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(f"unknown knob {name!r}; {hint}knobs are: {', '.join(KNOB_BY_NAME)}")


def read_value(name: str, text: str) -> KnobValue:
    """Read one knob's value from text.

    Raises:
        UsageError: unknown knob, or a value that it cannot take.
    """
    knob = knob_named(name)
    try:
        return knob.read(text.strip())
    except ValueError:
        raise UsageError(f"{name}={text.strip()!r} is not possible; {name} takes: {knob.values}") from None


def value_text(value: KnobValue) -> str:
    """The text that `read_value` reads back to the same value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def assignments_text(values: Mapping[str, KnobValue], separator: str = ",") -> str:
    """`K=V,K=V`, which `read_assignments` reads back."""
    return separator.join(f"{name}={value_text(value)}" for name, value in values.items())


def read_assignments(text: str) -> dict[str, KnobValue]:
    """Read `K=V,K=V` into knob values.

    Raises:
        UsageError: a part without `=`, an unknown knob or value, or a knob named twice.
    """
    values: dict[str, KnobValue] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"{part!r} is not of the form KNOB=VALUE")
        if name.strip() in values:
            raise UsageError(f"knob {name.strip()!r} is given twice")
        values[name.strip()] = read_value(name.strip(), value)
    return values
