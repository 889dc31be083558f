"""Keys of Hugging Face's TrainingArguments, which several trainers share."""

from __future__ import annotations

from typing import Any

from gputune_tui.export.measured import MIXED_PRECISIONS, Measured


def batch_keys(knobs: Measured, micro_batch_size_key: str) -> dict[str, Any]:
    """Micro-batch and accumulation."""
    return knobs.take_as(
        {"micro_batch_size": micro_batch_size_key, "accumulation_steps": "gradient_accumulation_steps"}
    )  # fmt: skip


def precision_keys(knobs: Measured) -> dict[str, Any]:
    """TF32 can be asked for on a GPU alone."""
    if "precision" not in knobs:
        return {}
    precision = knobs.take("precision")
    keys: dict[str, Any] = {name: precision == name for name in MIXED_PRECISIONS}
    if knobs.device_kind == "cuda":
        keys["tf32"] = precision == "tf32"
    return keys


def checkpointing_keys(knobs: Measured) -> dict[str, Any]:
    """All blocks or none; nothing between can be asked for."""
    if "activation_checkpointing" not in knobs or knobs.value("activation_checkpointing") not in ("none", "full"):
        return {}
    if knobs.take("activation_checkpointing") == "none":
        return {"gradient_checkpointing": False}
    return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}


def loader_keys(knobs: Measured) -> dict[str, Any]:
    """The DataLoader's; a prefetch factor without workers is refused by torch and so left out."""
    names = ("num_workers", "pin_memory", "prefetch_factor")
    found = knobs.take_as({name: f"dataloader_{name}" for name in names})
    return {key: value for key, value in found.items() if value is not None}


def compile_keys(knobs: Measured) -> dict[str, Any]:
    """torch.compile by the trainer."""
    if "compile" not in knobs:
        return {}
    mode = knobs.take("compile")
    return {"torch_compile": False} if mode == "none" else {"torch_compile": True, "torch_compile_mode": mode}


def training_arguments(knobs: Measured) -> dict[str, Any]:
    """Everything that TrainingArguments can hold, but for checkpointing (`checkpointing_keys`)."""
    keys = device_keys(knobs) | batch_keys(knobs, "per_device_train_batch_size") | precision_keys(knobs)
    keys |= loader_keys(knobs) | knobs.take_as({"persistent_workers": "dataloader_persistent_workers"})
    return keys | compile_keys(knobs)


def device_keys(knobs: Measured) -> dict[str, Any]:
    """Else a machine with a GPU would train on it, and bf16 would be refused without one."""
    return {"use_cpu": True} if knobs.device_kind == "cpu" else {}


def optimizer_remark(knobs: Measured, key: str = "optim") -> tuple[str, ...]:
    """The key names an algorithm as well, which is the job's own; the framework's default is the fused AdamW."""
    if "optimizer" not in knobs:
        return ()
    value = knobs.take("optimizer")
    name = "adamw_torch_fused" if value == "fused" else "adamw_torch"
    default = "" if value == "fused" else "; the framework's own default is the fused one"
    return (f"optimizer={value}: write `{key}: {name}` where the job's optimizer is AdamW{default}",)
