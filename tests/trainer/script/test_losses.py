"""Losses that are the mean over a batch, and those that are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gputune_tui.trainer.script.losses import why_no_mean

LABELS = torch.tensor([0, 2, 1, 2])


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lambda x: F.cross_entropy(x, LABELS), ""),
        (lambda x: F.cross_entropy(x, LABELS) / 4, ""),
        (lambda x: F.nll_loss(F.log_softmax(x, 1), LABELS), ""),
        (lambda x: F.mse_loss(x, torch.zeros(4, 3)) + 0.1 * x.abs().mean(), ""),
        (lambda x: (x**2).mean(), ""),
        (lambda x: F.smooth_l1_loss(x, torch.ones(4, 3)), ""),
        (lambda x: (x**2).sum(), "it is a sum"),
        (lambda x: 0.5 * ((x - 1) ** 2).sum() / 4, "it is a sum"),
        (lambda x: F.mse_loss(x, torch.zeros(4, 3), reduction="sum"), "reduction='sum'"),
        (lambda x: F.cross_entropy(x, LABELS, reduction="sum"), "reduction='sum'"),
        (lambda x: F.cross_entropy(x, LABELS, weight=torch.ones(3)), "weights"),
        (lambda x: F.cross_entropy(x, torch.tensor([0, -100, 1, 2])), "ignore_index"),
        (lambda x: F.cross_entropy(x, LABELS, ignore_index=2), "ignore_index"),
    ],
)
def test_what_a_loss_is(loss: Callable[[Tensor], Tensor], why: str) -> None:
    found = why_no_mean(loss(torch.randn(4, 3, requires_grad=True)))
    assert (why in found) if why else found == ""


def test_a_leaf_is_no_sum() -> None:
    assert why_no_mean(torch.zeros((), requires_grad=True)) == ""
