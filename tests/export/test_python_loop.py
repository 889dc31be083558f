"""The exported loop trains exactly as a trial does: the same parameters after some steps, bit for bit."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.export.registry import renderer_named
from gputune_tui.trainer.checkpointing import apply_checkpointing
from gputune_tui.trainer.loader import build_batches
from gputune_tui.trainer.optimizer import apply_optimizer_implementation
from gputune_tui.trainer.precision import prepare_precision
from gputune_tui.trainer.seeding import seed_everything
from gputune_tui.trainer.train_step import TrainStep, to_channels_last
from gputune_tui.trainer.workload import load_workload
from tests.export.make import report

WORKLOAD = """
import torch
from torch import nn
from torch.utils.data import Dataset


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.dropout = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(torch.relu(self.norm(self.conv(x))))


class Images(Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(4, 6, 6, generator=generator), i % 3 + 1


class Workload:
    def __init__(self, counted="false"):
        self.counted = counted == "true"

    def build_model(self):
        return nn.Sequential(*[Block() for _ in range(4)])

    def build_dataset(self):
        return Images()

    def build_optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=1e-2)

    def loss(self, model, batch):
        images, counts = batch
        found = model(images).pow(2).mean(dim=(1, 2, 3))
        if not self.counted:
            return found.mean(), found.detach()  # the second is no count
        return (found * counts).sum() / counts.sum(), int(counts.sum())
"""
STEPS = 5
"""Beyond the end of an epoch, whose last window is short."""


def by_trial(path: Path, options: dict[str, str], settings: TrainSettings) -> Any:
    """The model after a trial's own steps."""
    prepare_precision(settings.precision, "cpu")
    seed_everything(0)
    workload = load_workload(WorkloadRef(str(path), options))
    model = workload.build_model()
    model.train()
    if settings.channels_last:
        to_channels_last(model)
    apply_checkpointing(model, settings.activation_checkpointing, None)
    optimizer = workload.build_optimizer(list(model.parameters()))
    apply_optimizer_implementation(optimizer, settings.optimizer)
    step = TrainStep(workload, model, optimizer, settings, torch.device("cpu"))
    batches = build_batches(workload, settings, "cpu", 0)
    try:
        windows = batches.windows(settings.accumulation_steps)
        for _ in range(STEPS):
            step.run(next(windows))
    finally:
        batches.close()
    return model


def exported(folder: Path, path: Path, options: dict[str, str], settings: TrainSettings) -> Path:
    """The loop's file."""
    found = replace(report(settings), workload=WorkloadRef(str(path), options))
    script = folder / "loop.py"
    script.write_text(renderer_named("python")(found).text)
    return script


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "accumulation": {"accumulation_steps": 2},
    "accumulation_of_counted": {"accumulation_steps": 2, "counted": "true"},
    "fp16_accumulation": {"precision": "fp16", "accumulation_steps": 2},
    "full": {"activation_checkpointing": "full"},
    "every": {"activation_checkpointing": "every:2"},
    "segments": {"activation_checkpointing": "segments:3"},
    "selective": {"activation_checkpointing": "selective"},
    "channels_last": {"channels_last": True},
    "foreach": {"optimizer": "foreach"},
    "fused": {"optimizer": "fused"},
    "workers": {"num_workers": 1, "prefetch_factor": 3, "persistent_workers": True},
    "denormal": {"flush_denormal": False},
}


@pytest.mark.parametrize("case", CASES)
def test_the_loop_trains_as_the_trial_does(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs: dict[str, Any] = dict(CASES[case])
    options = {"counted": knobs.pop("counted", "false")}
    settings = replace(TrainSettings(micro_batch_size=4), **knobs)
    path = tmp_path / f"user_{case}.py"
    path.write_text(WORKLOAD)
    expected = by_trial(path, options, settings)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = runpy.run_path(str(exported(tmp_path, path, options, settings)))["main"](STEPS)
    wanted = expected.state_dict()
    for name, value in found.state_dict().items():  # running statistics included
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=0, msg=name)


def test_the_script_is_one_that_a_person_would_write(tmp_path: Path) -> None:
    for case, knobs in CASES.items():
        settings = replace(TrainSettings(), **{k: v for k, v in knobs.items() if k != "counted"})
        exported(tmp_path, tmp_path / "wl.py", {"size": "tiny"}, settings).rename(tmp_path / f"{case}.py")
    for command in (["format", "--check", "--diff"], ["check", "--select", "E,F,I,W"]):
        options = ["--no-cache", "--isolated", "--line-length", "120", str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-m", "ruff", command[0], *command[1:], *options], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm", "vision", "loader-bound"])
def test_the_loop_of_a_built_in_workload_runs_by_itself(name: str, tmp_path: Path) -> None:
    settings = TrainSettings(micro_batch_size=2, accumulation_steps=2, activation_checkpointing="full")
    found = replace(report(settings), workload=WorkloadRef(name, {"size": "tiny"}))
    script = tmp_path / "loop.py"
    script.write_text(renderer_named("python")(found).text)
    code = "import sys; sys.modules['gputune_tui'] = None; import runpy; sys.argv = ['loop.py', '2']; "
    done = subprocess.run(
        [sys.executable, "-c", code + "runpy.run_path('loop.py', run_name='__main__')"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("2 steps, last loss ")
