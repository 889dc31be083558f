"""The libraries that every trial process holds before its model is built, whether it was forked or started afresh."""

from __future__ import annotations

import contextlib
import importlib


def load_libraries() -> None:
    """Import what belongs to the process and not to the model, so that its memory counts as fixed overhead.

    The first optimizer imports torch._dynamo (about 150 MiB); torchvision adds 14 MiB to that. None of them starts a
    thread or runs an operator.
    """
    importlib.import_module("torch._dynamo")
    # It may be missing, or built for another torch, which matters only to a workload that imports it.
    with contextlib.suppress(Exception):
        importlib.import_module("torchvision")
