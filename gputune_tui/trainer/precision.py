"""The `precision` knob: matmul precision, autocast and the gradient scaler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch

from gputune_tui.trainer.faults import SettingsNotApplicable

AUTOCAST_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def prepare_precision(precision: str, device_kind: str) -> None:
    """Set what float32 matmuls and convolutions may use, for the whole process.

    Only `set_float32_matmul_precision` and `cudnn.allow_tf32` are touched: mixing them with the newer
    `.fp32_precision` attributes makes torch's own getters raise (trial_engine.md section 8). torch's default allows
    TF32 in convolutions; fp32 here means fp32 everywhere.
    """
    tf32 = precision == "tf32" and device_kind == "cuda"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    if device_kind == "cuda":
        torch.backends.cudnn.allow_tf32 = tf32


def precision_note(precision: str, device_kind: str) -> str | None:
    """The remark that a precision is emulated on this device, so that its speed says little; None where it is not.

    torch itself answers that bf16 is supported from compute capability 5.3 on, but the cards compute in it from 8.0.
    """
    if precision == "bf16" and device_kind == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return f"bf16 is emulated: this card has compute capability {major}.{minor}, below 8.0" if major < 8 else None
    if precision == "fp16" and device_kind == "cpu":
        return "fp16 on a CPU is mostly emulated and slow; it says nothing of a GPU"
    return None


def autocast(precision: str, device_kind: str) -> AbstractContextManager[object]:
    """The context of the forward pass and the loss."""
    if precision not in AUTOCAST_TYPES:
        return contextlib.nullcontext()
    context: AbstractContextManager[object] = torch.autocast(device_kind, dtype=AUTOCAST_TYPES[precision])
    return context


def grad_scaler(precision: str, device_kind: str) -> torch.amp.GradScaler | None:
    """The scaler that fp16 gradients need; None for every other precision.

    Raises:
        SettingsNotApplicable: it would not be active; a scaler for "cuda" on a machine without one says so only in a
            warning and lets small gradients vanish.
    """
    if precision != "fp16":
        return None
    scaler = torch.amp.GradScaler(device_kind)
    if not scaler.is_enabled():
        raise SettingsNotApplicable(f"fp16 AMP is not applicable: torch has no gradient scaler for {device_kind} here")
    return scaler


def check_parameters(precision: str, parameters: Iterable[torch.Tensor]) -> None:
    """Refuse fp16 AMP over parameters that are fp16 already: their gradients cannot be unscaled.

    Raises:
        SettingsNotApplicable: a trained parameter is fp16.
    """
    if precision == "fp16" and any(p.dtype == torch.float16 for p in parameters if p.requires_grad):
        raise SettingsNotApplicable(
            "fp16 AMP is not applicable: parameters are fp16 already, and their gradients cannot be unscaled; "
            "keep the model in fp32, or use precision=fp32 to run it as it is"
        )
