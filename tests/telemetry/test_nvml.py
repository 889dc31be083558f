"""The NVML probe against a fake driver: refused calls, lost cards, hangs and crashes are answers, never failures."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from gputune_tui.telemetry import nvml
from gputune_tui.telemetry.nvml import GpuInfo, GpuProbe, probe_gpus, read_nvml
from tests.telemetry.fake_nvml import FakeGpu, FakeNvml, NVMLError

GIB = 1 << 30


def refused(what: str = "Not Supported") -> NVMLError:
    return NVMLError(what)


def test_two_gpus_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml([FakeGpu("GPU-a", "H200"), FakeGpu("GPU-b", "L4", 24 * GIB, 20 * GIB)]).install(monkeypatch)
    found = read_nvml()
    assert found.driver == "570.86.10"
    assert found.problem is None
    assert found.gpus[0] == GpuInfo(0, "GPU-a", "H200", 141 * GIB, 140 * GIB)
    assert found.gpus[1] == GpuInfo(1, "GPU-b", "L4", 24 * GIB, 20 * GIB)
    assert fake.calls[-1] == "shutdown"


def test_old_bindings_answer_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([FakeGpu(b"GPU-a", b"H200 \xff")], driver=b"450.1").install(monkeypatch)
    found = read_nvml()
    assert found.driver == "450.1"
    assert found.gpus[0].uuid == "GPU-a"
    assert found.gpus[0].name == "H200 �"
    json.dumps(asdict(found))


def test_no_driver_is_a_problem_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(init_error=NVMLError("Driver Not Loaded")).install(monkeypatch)
    assert read_nvml() == GpuProbe(None, (), "no NVIDIA GPU: Driver Not Loaded")
    assert fake.calls == ["init"]


def test_a_lost_card_keeps_its_place_and_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([FakeGpu("GPU-a"), FakeGpu(lost=True), FakeGpu("GPU-c")]).install(monkeypatch)
    found = read_nvml()
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-a", None, "GPU-c"]
    assert found.gpus[1] == GpuInfo(1, None, None, None, None)


@pytest.mark.parametrize("total", [refused(), 0, None])
def test_memory_that_is_not_told_is_unknown_never_zero(monkeypatch: pytest.MonkeyPatch, total: object) -> None:
    FakeNvml([FakeGpu("GPU-a", total=total)]).install(monkeypatch)
    gpu = read_nvml().gpus[0]
    assert gpu.memory_total_bytes is None
    assert gpu.memory_free_bytes is None
    assert gpu.uuid == "GPU-a"


def test_a_full_card_has_nothing_free(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([FakeGpu(free=0)]).install(monkeypatch)
    assert read_nvml().gpus[0].memory_free_bytes == 0


def test_each_refused_call_costs_its_own_value_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([FakeGpu(refused(), refused("No Permission"))], driver=refused()).install(monkeypatch)
    found = read_nvml()
    assert found.driver is None
    assert found.gpus[0] == GpuInfo(0, None, None, 141 * GIB, 140 * GIB)


def test_a_refused_count_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([FakeGpu()], count_error=refused()).install(monkeypatch)
    assert read_nvml().gpus == ()


def test_a_failing_shutdown_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([FakeGpu("GPU-a")], shutdown_error=refused()).install(monkeypatch)
    assert read_nvml().gpus[0].uuid == "GPU-a"


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for the interpreter that the probe starts; the test writes its body."""
    path = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(path))
    return path


def write_script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_the_answer_of_the_child_is_read(interpreter: Path) -> None:
    answer = GpuProbe("1.2", (GpuInfo(0, "GPU-a", "H200", 2 * GIB, None),), None)
    write_script(interpreter, f"echo '{json.dumps(asdict(answer))}'")
    assert probe_gpus() == answer


def test_a_hanging_driver_is_left_after_the_time_limit(interpreter: Path) -> None:
    write_script(interpreter, "exec sleep 600")
    begin = time.monotonic()
    found = probe_gpus(timeout_s=1.0)
    assert time.monotonic() - begin < 60
    assert found == GpuProbe(None, (), "the NVIDIA driver did not answer within 1 s")


@pytest.mark.parametrize("body", ["kill -SEGV $$", "exit 1", "echo half a line; kill -BUS $$", "echo '{\"driver\"'"])
def test_a_crashing_driver_is_a_problem_in_words(interpreter: Path, body: str) -> None:
    write_script(interpreter, body)
    assert probe_gpus() == GpuProbe(None, (), "the NVIDIA driver library crashed")


@pytest.mark.parametrize(
    "answer", ["3", "null", "[]", "{}", '{"driver": null, "gpus": [{"index": 0}], "problem": null}']
)
def test_an_answer_of_another_shape_is_a_problem_in_words(interpreter: Path, answer: str) -> None:
    write_script(interpreter, f"echo '{answer}'")
    assert probe_gpus().problem == "the NVIDIA driver library crashed"


def test_a_missing_interpreter_is_a_problem_in_words(interpreter: Path) -> None:
    assert not interpreter.exists()
    assert probe_gpus() == GpuProbe(None, (), "NVML could not be asked: No such file or directory")


def test_what_hangs_in_the_kernel_is_not_waited_for(interpreter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_script(interpreter, "exec sleep 600")
    left: list[subprocess.Popen[bytes]] = []
    # A process in uninterruptible sleep ignores the signal too.
    monkeypatch.setattr(subprocess.Popen, "kill", lambda self: left.append(self))
    assert "did not answer" in (probe_gpus(timeout_s=0.2).problem or "")
    monkeypatch.undo()
    left[0].kill()
    assert left[0].wait(30) == -signal.SIGKILL


def test_a_users_own_json_module_does_not_stand_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the user has a json.py')")
    monkeypatch.chdir(tmp_path)
    assert "crashed" not in (probe_gpus(timeout_s=60.0).problem or "")


def test_the_real_probe_answers_here() -> None:
    found = probe_gpus(timeout_s=60.0)
    assert (found.problem is None) or not found.gpus
    assert found.gpus or found.problem or found.driver
    assert nvml.PROBE_TIMEOUT_S > 0
