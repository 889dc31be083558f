"""Trials where something runs out: shared memory, the group's memory, processes, open files, CPUs, the study's disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputune_tui.domain.trial import FailureReason
from gputune_tui.store.reading import read_study
from tests.cases.running import HEAD, command_for, told_by
from tests.cli.run_cli import gputune
from tests.privileged import control_group, inside, mounted_disk, with_small_shm

pytestmark = pytest.mark.slow

PLAIN = "class Workload(Base): pass"
LARGE_SAMPLES = """
class Data(Numbers):
    def __getitem__(self, i): return torch.zeros(4 << 20)
class Workload(Base):
    def build_dataset(self): return Data()
    def loss(self, model, batch): return super().loss(model, batch[:, :4])
"""
TAKES_2_GIB = """
        held = mmap.mmap(-1, 2 << 30)
        for _ in range(2 << 10):
            held.write(bytes(1 << 20))
"""
"""Shared, so that the trial's own cap does not count it, as little as what a driver or a library maps."""
TAKER = f"""
import mmap
class Workload(Base):
    def loss(self, model, batch):{TAKES_2_GIB}
        return super().loss(model, batch)
"""
TAKING_WORKER = f"""
import mmap
class Data(Numbers):
    def __getitem__(self, i):{TAKES_2_GIB}
        return super().__getitem__(i)
class Workload(Base):
    def build_dataset(self): return Data()
"""


@pytest.mark.privileged
def test_shared_memory_of_64_mb(tmp_path: Path) -> None:
    trials: list[dict[str, Any]] = [
        {"source": LARGE_SAMPLES, "num_workers": 2},
        {"source": LARGE_SAMPLES, "num_workers": 0},
        {"source": PLAIN, "num_workers": 2},
    ]
    told = told_by(with_small_shm("64m", command_for(tmp_path / "place", trials)))
    assert [one.state for one in told] == ["FAIL", "COMPLETE", "COMPLETE"], told
    assert told[0].reason == FailureReason.SHM
    assert "/dev/shm" in told[0].message


@pytest.mark.privileged
def test_a_memory_group_whose_kernel_kills(tmp_path: Path) -> None:
    trials: list[dict[str, Any]] = [{"source": TAKER}, {"source": TAKING_WORKER, "num_workers": 1}, {"source": PLAIN}]
    with control_group("memory", {"memory.max": str(1536 << 20)}) as group:
        told = told_by(inside(group, command_for(tmp_path / "place", trials)))
    assert [one.reason for one in told] == [FailureReason.HOST_OOM, FailureReason.HOST_OOM, None], told
    assert "the kernel killed it" in told[0].message
    assert "a loader worker" in told[1].message
    assert told[2].state == "COMPLETE"


@pytest.mark.privileged
def test_a_group_that_may_start_few_processes(tmp_path: Path) -> None:
    trials: list[dict[str, Any]] = [{"source": PLAIN, "num_workers": 12}, {"source": PLAIN}]
    with control_group("pids", {"pids.max": "14"}) as group:
        told = told_by(inside(group, command_for(tmp_path / "place", trials)))
    assert [one.state for one in told] == ["FAIL", "COMPLETE"], told
    assert "no further process or thread could be started; use fewer workers" in told[0].message


def test_64_open_files(tmp_path: Path) -> None:
    trials: list[dict[str, Any]] = [{"source": PLAIN, "num_workers": 16}, {"source": PLAIN, "num_workers": 1}]
    told = told_by(["prlimit", "--nofile=64:64", *command_for(tmp_path / "place", trials)])
    assert [one.state for one in told] == ["FAIL", "COMPLETE"], told
    assert told[0].reason == FailureReason.FILE_LIMIT
    assert "the limit is 64" in told[0].message


EFFECTIVE_CPUS = "from gputune_tui.telemetry.host import host_limits; print(host_limits().effective_cpus)"


def test_one_cpu_of_the_affinity() -> None:
    command = ["taskset", "-c", "0", sys.executable, "-c", EFFECTIVE_CPUS]
    assert float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == 1.0


@pytest.mark.privileged
def test_half_a_cpu_of_a_group() -> None:
    with control_group("cpu", {"cpu.max": "50000 100000"}) as group:
        command = inside(group, [sys.executable, "-c", EFFECTIVE_CPUS])
        assert float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == 0.5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 96 KiB."""
    with mounted_disk(tmp_path / "disk", "96k") as disk:
        yield disk


TUNE = ("tune", "./wl.py", "--device", "cpu", "--share", "--space", "micro_batch_size=8", "--study", "disk/study")
FILLING = """
class Workload(Base):
    def build_model(self):
        with open("disk/ballast", "ab", buffering=0) as file:
            try:
                while True: file.write(bytes(4096))
            except OSError: pass
        return super().build_model()
"""


@pytest.mark.privileged
def test_a_workload_that_fills_the_studys_disk(tmp_path: Path, small_disk: Path) -> None:
    (tmp_path / "wl.py").write_text(HEAD + FILLING)
    done = gputune(*TUNE, cwd=tmp_path)
    assert done.returncode == 5
    assert "No space left on device" in done.stderr.splitlines()[-1]
    assert "samples/s" in done.stdout, "what was measured is printed all the same"
    assert read_study(small_disk / "study").problems == ()


@pytest.mark.privileged
def test_a_study_on_a_disk_that_is_read_only(tmp_path: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    (tmp_path / "wl.py").write_text(HEAD + PLAIN + "\n")
    done = gputune(*TUNE, cwd=tmp_path)
    assert done.returncode == 5
    assert "read-only" in done.stderr.splitlines()[-1]
