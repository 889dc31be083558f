"""The CUDA path on a real device: a search within a budget, peaks and cap, fork-started loader workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gputune_tui.telemetry.nvml import probe_gpus
from tests.cli.run_cli import document, gputune

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not probe_gpus().gpus, reason="no CUDA device: NVML lists none"),
]

LM = ("lm", "-D", "size=small", "--device", "cuda", "--global-batch", "32")


def run(tmp_path: Path, *arguments: str) -> tuple[int, Any, str]:
    done = gputune(*arguments, "--study", tmp_path / "study", "--json", "-")
    return done.returncode, document(done), done.stderr


def test_a_search_on_the_device(tmp_path: Path) -> None:
    space = "precision=fp32,tf32,bf16,fp16;micro_batch_size=16,32;num_workers=0,2"
    code, result, talk = run(tmp_path, "tune", *LM, "--budget", "16GiB", "--space", space)
    assert code == 0, talk
    assert len(result["trials"]) == 16
    for trial in result["trials"]:
        assert trial["state"] == "COMPLETE", trial["failure"]
        memory = trial["memory"]
        assert 0 < memory["peak_allocated_bytes"] <= memory["peak_reserved_bytes"] < memory["device_peak_bytes"]
        assert memory["device_peak_bytes"] <= 16 << 30
        assert trial["disqualified"] is None


def test_accumulation_needs_less_memory(tmp_path: Path) -> None:
    code, result, talk = run(tmp_path, "tune", *LM, "--space", "micro_batch_size=4,32")
    assert code == 0, talk
    peaks = {t["settings"]["micro_batch_size"]: t["memory"]["peak_allocated_bytes"] for t in result["trials"]}
    assert peaks[4] < peaks[32]


def test_the_cap_ends_the_trial(tmp_path: Path) -> None:
    # More than a CUDA context, less than the model with its optimizer state.
    code, result, talk = run(tmp_path, "trial", *LM, "--budget", "900MiB", "--set", "micro_batch_size=32")
    assert code == 3, talk
    assert result["trials"][0]["failure"]["reason"] == "OVER_BUDGET"


def test_checkpointing_saves_memory(tmp_path: Path) -> None:
    space = "activation_checkpointing=none,full,selective,every:2,segments:2"
    code, result, talk = run(tmp_path, "tune", *LM, "--space", space)
    assert code == 0, talk
    peaks = {t["settings"]["activation_checkpointing"]: t["memory"]["peak_allocated_bytes"] for t in result["trials"]}
    assert peaks["full"] < peaks["selective"] < peaks["none"]
