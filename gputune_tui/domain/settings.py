"""TrainSettings: every knob of one trial, its canonical form, and the difference between two."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from gputune_tui.domain.knobs import KNOB_BY_NAME, KnobValue, assignments_text, read_value, value_text
from gputune_tui.errors import UsageError


@dataclass(frozen=True)
class TrainSettings:
    """The knobs of one trial (DESIGN section 5; `domain.knobs` says what each may be)."""

    precision: str = "fp32"
    micro_batch_size: int = 1
    """Samples per forward pass and rank."""
    accumulation_steps: int = 1
    """Forward passes per optimizer step."""
    activation_checkpointing: str = "none"
    optimizer: str = "default"
    channels_last: bool = False
    compile: str = "none"
    flush_denormal: bool = False
    num_workers: int = 0
    prefetch_factor: int | None = None
    """Batches each worker keeps ready; None without workers."""
    pin_memory: bool = False
    persistent_workers: bool = False
    data_staging: str = "none"
    python: str | None = None
    """Path of the interpreter that runs the trial; None is the one that runs this program."""
    world_size: int = 1
    strategy: str = "ddp"
    gradient_compression: str = "none"
    bucket_size_mib: int = 25
    no_sync: bool = True
    static_graph: bool = False

    @property
    def samples_per_step(self) -> int:
        """Samples of one optimizer step over all ranks."""
        return self.micro_batch_size * self.accumulation_steps * self.world_size

    def canonical(self, device_kind: str) -> TrainSettings:
        """The one form of all settings that cannot differ on `device_kind` ("cpu" or "cuda").

        Without workers nothing is prefetched or kept alive; with workers torch prefetches 2 where nothing is said;
        pinning, TF32 and fused CUDA paths do nothing on a CPU; flushing denormals is a CPU mode.
        """
        changes: dict[str, KnobValue] = {}
        if self.num_workers == 0:
            changes |= {"prefetch_factor": None, "persistent_workers": False}
        elif self.prefetch_factor is None:
            changes["prefetch_factor"] = 2
        if device_kind == "cpu":
            changes["pin_memory"] = False
            if self.precision == "tf32":
                changes["precision"] = "fp32"
        else:
            changes["flush_denormal"] = False
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]  # the table guarantees the types

    def as_dict(self) -> dict[str, KnobValue]:
        """Every knob by name, defaults included, in the table's order."""
        return {name: getattr(self, name) for name in KNOB_BY_NAME}

    def difference(self, other: TrainSettings) -> dict[str, KnobValue]:
        """The knobs of `self` that differ from `other`."""
        theirs = other.as_dict()
        return {name: value for name, value in self.as_dict().items() if value != theirs[name]}

    def text(self, than: TrainSettings | None = None) -> str:
        """`K=V,...` of the knobs that differ from `than` (default: from nothing, so all)."""
        values = self.as_dict() if than is None else self.difference(than)
        return assignments_text(values)


def settings_from_dict(values: Mapping[str, object]) -> TrainSettings:
    """Build settings from knob values as JSON or YAML hold them.

    Raises:
        UsageError: an unknown knob, or a value it cannot take.
    """
    checked: dict[str, KnobValue] = {}
    for name, value in values.items():
        if value is not None and not isinstance(value, str | int | bool):
            raise UsageError(f"{name}={value!r} is not possible")
        checked[name] = read_value(name, value_text(value))
        if type(checked[name]) is not type(value):
            raise UsageError(f"{name}={value!r} is of the wrong type; {name} takes: {KNOB_BY_NAME[name].values}")
    return TrainSettings(**checked)  # type: ignore[arg-type]  # read_value has checked names and types
