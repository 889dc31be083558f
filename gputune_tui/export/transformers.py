"""TrainingArguments of Hugging Face transformers, as HfArgumentParser.parse_yaml_file reads them."""

from __future__ import annotations

from gputune_tui.export.hugging_face import checkpointing_keys, optimizer_remark, training_arguments
from gputune_tui.export.measured import Measured
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered, yaml_file


def render(report: ExportReport) -> Rendered:
    """Keys to put beside the job's own (output_dir, learning_rate and so on)."""
    knobs = Measured(report)
    keys = training_arguments(knobs) | checkpointing_keys(knobs)
    remarks = optimizer_remark(knobs) + knobs.not_written("TrainingArguments")
    return yaml_file(report, "transformers: keys for TrainingArguments, beside the job's own", keys, remarks)
