"""axolotl's YAML."""

from __future__ import annotations

from typing import Any

from gputune_tui.export.hugging_face import (
    batch_keys,
    checkpointing_keys,
    compile_keys,
    loader_keys,
    optimizer_remark,
    precision_keys,
)
from gputune_tui.export.measured import Measured
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered, yaml_file


def render(report: ExportReport) -> Rendered:
    """Keys to put beside the job's own (base_model, datasets and so on).

    Where none of its three loader keys is given, axolotl takes a worker a GPU, pinned memory and a prefetch factor of
    256; one of them is enough to keep it from that.
    """
    knobs = Measured(report)
    keys: dict[str, Any] = batch_keys(knobs, "micro_batch_size") | precision_keys(knobs)
    keys |= loader_keys(knobs) | checkpointing_keys(knobs) | compile_keys(knobs)
    remarks = _precision_remark(knobs) + optimizer_remark(knobs, "optimizer") + knobs.not_written("axolotl")
    return yaml_file(report, "axolotl: keys to put beside the job's own", keys, remarks)


def _precision_remark(knobs: Measured) -> tuple[str, ...]:
    precision = knobs.mixed_precision
    if precision is None:
        return ()
    return (
        f"precision={precision}: axolotl loads the weights themselves in {precision}, too; measured was autocast over "
        "fp32 weights",
    )
