"""The precision knob: what is set in the process, an active scaler, and refusals in words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from gputune_tui.trainer.faults import SettingsNotApplicable
from gputune_tui.trainer.precision import (
    autocast,
    check_parameters,
    grad_scaler,
    precision_note,
    prepare_precision,
)


@pytest.fixture(autouse=True)
def _settings_restored() -> Iterator[None]:
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = convolution


@pytest.mark.parametrize(
    ("precision", "kind", "matmul", "convolution"),
    [
        ("fp32", "cuda", "highest", False),
        ("tf32", "cuda", "high", True),
        ("bf16", "cuda", "highest", False),
        ("tf32", "cpu", "highest", True),
    ],
)
def test_float32_matmuls_and_convolutions(precision: str, kind: str, matmul: str, convolution: bool) -> None:
    torch.backends.cudnn.allow_tf32 = True
    prepare_precision(precision, kind)
    assert torch.get_float32_matmul_precision() == matmul
    assert torch.backends.cudnn.allow_tf32 is convolution


@pytest.mark.parametrize(
    ("precision", "expected"),
    [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_autocast(precision: str, expected: torch.dtype) -> None:
    with autocast(precision, "cpu"):
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == expected


def test_only_fp16_has_a_scaler_and_it_is_active_on_the_cpu() -> None:
    assert [grad_scaler(precision, "cpu") for precision in ("fp32", "tf32", "bf16")] == [None, None, None]
    scaler = grad_scaler("fp16", "cpu")
    assert scaler is not None
    assert scaler.scale(torch.ones(())).item() > 1


@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the scaler is active with a CUDA device")
def test_a_scaler_that_would_do_nothing_is_refused() -> None:
    with pytest.raises(SettingsNotApplicable, match="no gradient scaler for cuda"):
        grad_scaler("fp16", "cuda")


def test_fp16_over_half_parameters_is_refused_and_only_that() -> None:
    half = nn.Linear(2, 2).half()
    with pytest.raises(SettingsNotApplicable, match="fp16 AMP is not applicable: parameters are fp16"):
        check_parameters("fp16", half.parameters())
    check_parameters("fp32", half.parameters())
    check_parameters("fp16", nn.Linear(2, 2).parameters())
    check_parameters("fp16", half.requires_grad_(False).parameters())


@pytest.mark.parametrize(
    ("precision", "kind", "capability", "words"),
    [
        ("bf16", "cuda", (7, 5), "bf16 is emulated: this card has compute capability 7.5, below 8.0"),
        ("bf16", "cuda", (8, 0), None),
        ("fp16", "cuda", (7, 5), None),
        ("fp16", "cpu", None, "fp16 on a CPU is mostly emulated and slow; it says nothing of a GPU"),
        ("bf16", "cpu", None, None),
    ],
)
def test_an_emulated_precision_is_said(
    monkeypatch: pytest.MonkeyPatch, precision: str, kind: str, capability: tuple[int, int] | None, words: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
    assert precision_note(precision, kind) == words
