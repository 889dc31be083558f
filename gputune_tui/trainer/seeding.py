"""The seeds that a trial starts from."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

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


@contextlib.contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Put every global generator back to where it stood: what runs inside draws nothing that the training would."""
    numpy = sys.modules.get("numpy")
    pythons, torchs = random.getstate(), torch.get_rng_state()
    numpys = None if numpy is None else numpy.random.get_state()
    devices = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        random.setstate(pythons)
        torch.set_rng_state(torchs)
        if numpy is not None:
            numpy.random.set_state(numpys)
        if devices is not None:
            torch.cuda.set_rng_state(devices, device)
