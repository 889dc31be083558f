"""`monitor` without a screen: text, JSON, a stream, recordings; stdout carries data alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from gputune_tui.telemetry.recording import Recorder, read_recording
from gputune_tui.telemetry.simulated import simulated_snapshots
from tests.cli.run_cli import document, gputune

DEADLINE_S = 60.0


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A node with two GPUs."""
    path = tmp_path / "node"
    recorder = Recorder(path)
    for snapshot in islice(simulated_snapshots(0, gpus=2, interval_s=0.2), 20):
        recorder.take(snapshot)
    recorder.close()
    return path


def test_this_node_as_json() -> None:
    done = gputune("monitor", "--once", "--json", "-")
    assert done.returncode == 0
    found = document(done)
    assert found["schema"] == 1
    assert bool(found["gpus"]) or "No NVIDIA GPU" in found["problem"]
    assert found["cpu"]["cpu_fraction"] is not None
    assert found["cpu"]["memory_total_bytes"] > 0


def test_a_recording_as_text_and_json(recording: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = gputune("monitor", "--once", "--replay", recording, "--json", out)
    assert (done.returncode, done.stderr) == (0, "")
    for words in ("SIMULATED", "RECORDED", "Simulated H100 80GB", "/700 W", "trial: python train.py", "RAM", "net"):
        assert words in done.stdout
    found = json.loads(out.read_text())
    assert [gpu["uuid"] for gpu in found["gpus"]] == ["GPU-simulated-0", "GPU-simulated-1"]
    assert found["recorded"] is True
    assert found["gpus"][0]["pcie_generation"] == 5
    assert found["processes"][0]["kind"] == "C"


def test_json_alone_implies_once(recording: Path) -> None:
    done = gputune("monitor", "--replay", recording, "--json", "-")
    assert done.returncode == 0
    assert len(document(done)["gpus"]) == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_stream_is_one_object_a_line_until_it_is_ended(
    recording: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    kept = tmp_path / "kept"
    command = [sys.executable, "-m", "gputune_tui", "monitor", "--stream", "--interval", "0.5s"]
    running = subprocess.Popen(
        [*command, "--replay", str(recording), "--record", str(kept)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        text=True,
    )
    assert running.stdout is not None
    lines = [running.stdout.readline() for _ in range(3)]
    os.kill(running.pid, number)
    rest, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == code
    times = [json.loads(line)["time"] for line in (*lines, *rest.splitlines())]
    assert times == sorted(times)
    assert [snapshot.time_s for snapshot in read_recording(kept)] == times


def test_a_reader_that_leaves_ends_the_stream(recording: Path) -> None:
    command = f"{sys.executable} -m gputune_tui monitor --stream --interval 0.5s --replay {recording} | head -1"
    done = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--stream", "--once"), 2, "--stream writes JSON"),
        (("--interval", "0.1s"), 2, "too short"),
        (("--replay", "/nowhere"), 2, "cannot read /nowhere"),
        (("--once", "--record", "/nowhere/file"), 2, "cannot record"),
        ((), 5, "needs a terminal"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = gputune("monitor", *arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
