"""LLaMA-Factory's YAML: TrainingArguments, but checkpointing is on unless it is turned off by a key of its own."""

from __future__ import annotations

from typing import Any

from gputune_tui.export.hugging_face import checkpointing_keys, optimizer_remark, training_arguments
from gputune_tui.export.measured import Measured
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered, yaml_file


def render(report: ExportReport) -> Rendered:
    """Keys to put beside the job's own (model_name_or_path, dataset and so on)."""
    knobs = Measured(report)
    keys: dict[str, Any] = training_arguments(knobs)
    if found := checkpointing_keys(knobs):
        keys |= {"disable_gradient_checkpointing": not found["gradient_checkpointing"]}
        keys |= {"use_reentrant_gc": False} if found["gradient_checkpointing"] else {}
    elif "activation_checkpointing" in knobs:
        keys["disable_gradient_checkpointing"] = True  # else it would recompute all blocks, which was not measured
    remarks = optimizer_remark(knobs) + knobs.not_written("LLaMA-Factory")
    return yaml_file(report, "LLaMA-Factory: keys to put beside the job's own", keys, remarks)
