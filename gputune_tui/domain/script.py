"""What a command does by itself: the settings it trains under, and what keeps a knob from being set from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gputune_tui.domain.knobs import KnobValue

ACCUMULATION = "accumulation_steps"
"""Under this name stands why an optimizer step cannot be cut into smaller batches from outside."""


@dataclass(frozen=True)
class LoaderFacts:
    """The DataLoader that feeds the training."""

    place: str
    """file:line where the script, or the framework that it uses, builds it."""
    site: str
    """Names the calls that lead there, the same in each run of the script."""
    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    samples: int | None = None
    """Of one epoch and rank; None of an iterable dataset."""


@dataclass(frozen=True)
class ScriptFacts:
    """As seen in the first optimizer steps of the script as it is."""

    micro_batch_size: int
    """Samples per forward pass and rank."""
    accumulation_steps: int = 1
    """Backward passes per optimizer step."""
    world_size: int = 1
    counted_by: str = "loader"
    """Where the samples were counted: "loader", or "model" (the first dimension of what it is called with)."""
    loader: LoaderFacts | None = None
    precision: str = "fp32"
    compile: str = "none"
    channels_last: bool = False
    model: str = ""
    """Class of the model."""
    parameters: int = 0
    """Trained ones."""
    blocks: str = ""
    """Its repeated blocks in words; empty where there are none."""
    optimizer: str = ""
    """Class of the optimizer."""
    framework: str = ""
    """What runs the loop, where the script does not itself: transformers.Trainer, Lightning, accelerate."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Knob -> why it cannot be set from outside exactly."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Flag of its command line -> the knob that it seems to set."""
    torch: str | None = None
    python: str | None = None
    """Versions of what it runs under."""
    remarks: tuple[str, ...] = ()
    """What its author would want to know."""

    @property
    def samples_per_step(self) -> int:
        """Samples of one optimizer step over all ranks."""
        return self.micro_batch_size * self.accumulation_steps * self.world_size

    def knobs(self) -> dict[str, KnobValue]:
        """The settings that the script has by itself."""
        values: dict[str, KnobValue] = {
            "micro_batch_size": self.micro_batch_size,
            "accumulation_steps": self.accumulation_steps,
            "world_size": self.world_size,
            "precision": self.precision,
            "compile": self.compile,
            "channels_last": self.channels_last,
        }
        if self.loader is not None:
            values |= {
                "num_workers": self.loader.num_workers,
                "prefetch_factor": self.loader.prefetch_factor,
                "pin_memory": self.loader.pin_memory,
                "persistent_workers": self.loader.persistent_workers,
            }
        return values

    def refusal(self, knob: str) -> str | None:
        """Why a knob cannot be set from outside; None where it can be."""
        return self.refused.get(ACCUMULATION if knob == "micro_batch_size" else knob)


INJECTED_KNOBS = (
    "precision",
    "micro_batch_size",
    "accumulation_steps",
    "activation_checkpointing",
    "optimizer",
    "channels_last",
    "compile",
    "flush_denormal",
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "persistent_workers",
)
"""Knobs that can be set in a script that has no flag for them."""
