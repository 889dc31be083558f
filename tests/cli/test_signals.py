"""The tuner dies or is told to stop in the middle of a trial: nothing is left running, nothing is lost, it resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .run_cli import document, gputune

pytestmark = pytest.mark.slow

DEADLINE_S = 120.0
GONE_S = 10.0
WORKLOAD = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4096
    def __getitem__(self, index): return torch.randn(8)
class Workload:
    global_batch_size = 8
    def build_model(self): return torch.nn.Linear(8, 1)
    def build_dataset(self): return Data()
    def loss(self, model, batch): return model(batch).pow(2).mean()
"""
SPACE = "micro_batch_size=8,4,2"
ARGUMENTS = ("./work.py", "--device", "cpu", "--baseline", "num_workers=2", "--space", SPACE)


def start(folder: Path) -> subprocess.Popen[str]:
    (folder / "work.py").write_text(WORKLOAD)
    return subprocess.Popen(
        [sys.executable, "-m", "gputune_tui", "tune", *ARGUMENTS, "--study", str(folder / "study")],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def processes_of(folder: Path) -> list[int]:
    """Living processes that carry a job of this study in their environment: trials and loader workers, keepers too."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if state not in ("Z", "X") and b"GPUTUNE_JOB=" + bytes(folder / "study") in environment:
                found.append(int(entry.name))
    return found


def wait_for_second_trial(folder: Path, tuner: subprocess.Popen[str]) -> None:
    """Until the first trial is stored and the second one runs with its loader workers."""
    deadline = time.monotonic() + DEADLINE_S
    while len(processes_of(folder)) < 4 or not (folder / "study/trials/2/job.json").exists():
        assert tuner.poll() is None, tuner.communicate()
        assert time.monotonic() < deadline, "the second trial did not start"
        time.sleep(0.05)


def wait_gone(folder: Path) -> None:
    deadline = time.monotonic() + GONE_S
    while left := processes_of(folder):
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


def test_kill_9_leaves_nothing_and_the_same_command_resumes(tmp_path: Path) -> None:
    tuner = start(tmp_path)
    wait_for_second_trial(tmp_path, tuner)
    tuner.kill()
    tuner.communicate()
    wait_gone(tmp_path)
    done = gputune("tune", *ARGUMENTS, "--study", tmp_path / "study", "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 already finished" in done.stderr
    trials = document(done)["trials"]
    complete = [t for t in trials if t["state"] == "COMPLETE"]
    assert sorted(t["settings"]["micro_batch_size"] for t in complete) == [2, 4, 8]
    stale = [t for t in trials if t["state"] == "FAIL"]
    assert [t["failure"]["reason"] for t in stale] == ["STALE"]
    assert all(t["rank"] is None for t in stale)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_trial_keeps_results_and_tells_how_to_go_on(number: signal.Signals, tmp_path: Path) -> None:
    tuner = start(tmp_path)
    wait_for_second_trial(tmp_path, tuner)
    tuner.send_signal(number)
    talk, complaint = tuner.communicate(timeout=30)
    assert tuner.returncode == 128 + number
    assert "the same command goes on there" in complaint
    assert "Traceback" not in complaint
    assert "samples/s" in talk, "what was measured so far is printed"
    wait_gone(tmp_path)
    journal = next((tmp_path / "study").glob("journal-*.jsonl")).read_text().splitlines()
    ended = [json.loads(line)["trial"] for line in journal if json.loads(line)["record"] == "ended"]
    assert [trial["state"] for trial in ended] == ["COMPLETE", "FAIL"]
    assert ended[1]["failure"]["reason"] == "KILLED"
