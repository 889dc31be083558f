"""Hugging Face accelerate's configuration file, and the environment variable that its file cannot carry."""

from __future__ import annotations

from typing import Any

from gputune_tui.export.measured import Measured, cpu_threads
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered, yaml_file

ACCUMULATION_VARIABLE = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""Read by `Accelerator`, where it goes before the script's own argument."""


def render(report: ExportReport) -> Rendered:
    """For `accelerate launch --config_file FILE`, which refuses keys that it does not know."""
    knobs = Measured(report)
    keys: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO"}
    if "precision" in knobs:
        precision = knobs.mixed_precision
        keys["mixed_precision"] = precision or "no"
        # On a CPU accelerate leaves fp16 out.
        if precision is not None and (precision, knobs.device_kind) != ("fp16", "cpu"):
            knobs.take("precision")
    keys |= {"num_processes": 1, "num_machines": 1, "machine_rank": 0, "use_cpu": knobs.device_kind == "cpu"}
    if "compile" in knobs and (mode := knobs.take("compile")) != "none":
        keys["dynamo_config"] = {"dynamo_backend": "INDUCTOR", "dynamo_mode": mode}
    remarks = _environment(report, knobs) + knobs.not_written("accelerate's file")
    return yaml_file(report, "accelerate: for `accelerate launch --config_file FILE`", keys, remarks)


def _environment(report: ExportReport, knobs: Measured) -> tuple[str, ...]:
    """What the launcher hands on but reads from no file."""
    found: list[str] = []
    if (threads := cpu_threads(report)) is not None:
        found.append(f"{threads} threads: set OMP_NUM_THREADS={threads} in the environment of the launch")
    if "accumulation_steps" in knobs:
        steps = knobs.take("accumulation_steps")
        found.append(
            f"accumulation_steps={steps}: set {ACCUMULATION_VARIABLE}={steps} in the environment of the launch (the "
            "Trainer of transformers has its own argument and does not read it)"
        )
    if "compile" in knobs and knobs.value("compile") != "none":
        found.append("compile: accelerate compiles with dynamic=False, so that shapes that vary are compiled each")
    return tuple(found)
