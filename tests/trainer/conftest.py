"""Load a user's workload from files of a test's own, and forget it afterwards as a new process would."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trainer.workload import AdaptedWorkload, load_workload

LoadFile = Callable[..., AdaptedWorkload]

HEAD = """
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, DataLoader, get_worker_info
"""

LINEAR = """
class Numbers(Dataset):
    def __init__(self, n=10):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return torch.tensor([float(i)])

class Workload:
    def build_model(self):
        return nn.Linear(1, 1)
    def build_dataset(self):
        return Numbers()
    def loss(self, model, batch):
        return model(batch).mean()
"""
"""A whole workload: ten samples, each holding its own number."""


@pytest.fixture
def fresh_imports() -> Iterator[None]:
    """Whatever a test imports is forgotten: a trial process loads one workload only."""
    modules, path, arguments = set(sys.modules), list(sys.path), list(sys.argv)
    yield
    for name in set(sys.modules) - modules:
        if not name.startswith(("torch", "gputune_tui.")):
            del sys.modules[name]
    sys.path[:], sys.argv[:] = path, arguments


@pytest.fixture
def load_file(tmp_path: Path, fresh_imports: None) -> LoadFile:
    """Write a workload file (and others beside it) and load it: load_file(source, suffix="", options=..., name=...)."""

    def load(source: str, suffix: str = "", name: str = "wl.py", head: str = HEAD, **options: str) -> AdaptedWorkload:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + textwrap.dedent(source), encoding="utf-8")
        return load_workload(WorkloadRef(f"{path}{suffix}", options))

    return load
