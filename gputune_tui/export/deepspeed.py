"""DeepSpeed's JSON configuration; JSON has no comments, so they are the value of a key that DeepSpeed does not read."""

from __future__ import annotations

import json

from gputune_tui.export.hugging_face import batch_keys
from gputune_tui.export.measured import Measured
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered, head_lines

AUTOCAST_TYPES = {"bf16": "bfloat16", "fp16": "float16"}


def render(report: ExportReport) -> Rendered:
    """Batch and precision; `bf16` and `fp16` there convert the parameters, `torch_autocast` does as was measured."""
    knobs = Measured(report)
    keys = batch_keys(knobs, "train_micro_batch_size_per_gpu")
    if len(keys) == 2:  # refused by DeepSpeed where it is not the product
        keys["train_batch_size"] = report.settings.samples_per_step
    remarks: tuple[str, ...] = ()
    if "precision" in knobs:
        keys |= {"bf16": {"enabled": False}, "fp16": {"enabled": False}}
        if knobs.mixed_precision is not None:
            keys["torch_autocast"] = {"enabled": True, "dtype": AUTOCAST_TYPES[knobs.mixed_precision]}
            remarks = (
                "torch_autocast is known to DeepSpeed from 0.17.2 on, older versions do not read it; the Trainer of "
                "transformers wants bf16 and fp16 here as in its own arguments: leave both out there",
            )
            knobs.take("precision")  # fp32 and tf32 are settings of torch and not of DeepSpeed
    remarks += knobs.not_written("DeepSpeed's file")
    keys["_comment"] = head_lines(report, "DeepSpeed: keys to put beside the job's own", remarks)
    return Rendered(json.dumps(keys, indent=2) + "\n", remarks)
