"""The seeds that a trial starts from."""

from __future__ import annotations

import random
import sys

import torch


def seed_everything(seed: int) -> None:
    """Seed every global generator that user code draws from: initial weights and data are the same for every setting.

    numpy's only where it is loaded: the trainer itself does without.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))
