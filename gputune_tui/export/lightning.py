"""Lightning's LightningCLI configuration: the Trainer's arguments; the loader belongs to the user's module."""

from __future__ import annotations

from typing import Any

from gputune_tui.export.measured import Measured
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered, yaml_file

PRECISIONS = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def render(report: ExportReport) -> Rendered:
    """The `trainer` section."""
    knobs = Measured(report)
    trainer: dict[str, Any] = {"accelerator": "gpu" if knobs.device_kind == "cuda" else "cpu", "devices": 1}
    if "precision" in knobs:
        trainer["precision"] = PRECISIONS[str(knobs.value("precision"))]
        if knobs.mixed_precision is not None:
            knobs.take("precision")
    trainer |= knobs.take_as({"accumulation_steps": "accumulate_grad_batches"})
    remarks = _emulated(knobs) + knobs.not_written("Lightning's Trainer")
    return yaml_file(report, "Lightning: for LightningCLI (--config FILE)", {"trainer": trainer}, remarks)


def _emulated(knobs: Measured) -> tuple[str, ...]:
    if (knobs.mixed_precision, knobs.device_kind) != ("fp16", "cpu"):
        return ()
    return ("precision=fp16: on a CPU Lightning takes bf16 in its place, which was not measured",)
