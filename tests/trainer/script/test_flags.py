"""Names that public scripts give to flags for knobs."""

from __future__ import annotations

import pytest

from gputune_tui.trainer.script.flags import NAMES, knob_of


@pytest.mark.parametrize(
    ("name", "knob"),
    [
        ("batch_size", "micro_batch_size"),
        ("batch-size", "micro_batch_size"),
        ("per_device_train_batch_size", "micro_batch_size"),
        ("bs", "micro_batch_size"),
        ("gradient_accumulation_steps", "accumulation_steps"),
        ("accumulate_grad_batches", "accumulation_steps"),
        ("accum_iter", "accumulation_steps"),
        ("workers", "num_workers"),
        ("num_workers", "num_workers"),
        ("dataloader_num_workers", "num_workers"),
        ("amp", "precision"),
        ("bf16", "precision"),
        ("mixed_precision", "precision"),
        ("gradient_checkpointing", "activation_checkpointing"),
        ("torch_compile", "compile"),
        ("channels_last", "channels_last"),
        ("pin_mem", "pin_memory"),
        ("eval_batch_size", None),
        ("epochs", None),
        ("lr", None),
        ("checkpoint", None),
        ("resume", None),
        ("warmup_steps", None),
    ],
)
def test_flags_and_knobs(name: str, knob: str | None) -> None:
    assert knob_of(name) == knob
    assert knob is None or knob in NAMES
