"""Processes as /proc tells them: real children, trials by their environment, numbers that name nothing."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from gputune_tui.domain.job import JOB_VARIABLE
from gputune_tui.domain.telemetry import ProcessSnapshot
from gputune_tui.telemetry import process_reader
from gputune_tui.telemetry.nvml_processes import GpuProcess
from gputune_tui.telemetry.process_reader import ProcessReader

DEADLINE_S = 30.0
NOBODY = 4_500_000
"""Above the highest process number of Linux."""
WAIT = "sleep 600"


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    children: list[subprocess.Popen[bytes]] = []

    def begin(*command: str | bytes, **options: object) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)  # type: ignore[call-overload]
        children.append(child)
        return child  # type: ignore[no-any-return]

    yield begin
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(DEADLINE_S)


def row_of(reader: ProcessReader, pid: int, wanted: Callable[[ProcessSnapshot], bool]) -> ProcessSnapshot:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        rows = [row for row in reader.read([GpuProcess(pid, 0, 5)]) if row.pid == pid]
        if rows and wanted(rows[0]):
            return rows[0]
        assert time.monotonic() < deadline, rows
        time.sleep(0.05)


def test_a_process_on_a_gpu_is_described(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = start(sys.executable, "-c", "while True: pass", "two words")
    row = row_of(ProcessReader(), child.pid, lambda row: (row.cpu_fraction or 0) > 0)
    assert (row.pid, row.device_index, row.gpu_memory_bytes, row.is_trial) == (child.pid, 0, 5, False)
    assert row.user == getpass.getuser()
    assert row.resident_bytes is not None
    assert row.resident_bytes > 1 << 20
    assert row.command == f"{sys.executable} -c while True: pass two words"


def test_the_first_reading_has_no_cpu_use() -> None:
    assert ProcessReader().read([GpuProcess(os.getpid(), 0, None)])[0].cpu_fraction is None


def test_a_process_on_two_gpus_has_two_rows_of_the_same_process() -> None:
    reader = ProcessReader(NOBODY)
    on_both = [GpuProcess(os.getpid(), 0, 1), GpuProcess(os.getpid(), 1, 2)]
    reader.read(on_both)
    first, second = reader.read(on_both)
    assert (first.device_index, second.device_index) == (0, 1)
    assert first.cpu_fraction is not None
    assert first.cpu_fraction == second.cpu_fraction


@pytest.mark.parametrize("pid", [NOBODY, 0, (1 << 32) - 1])
def test_a_number_that_names_nothing_here_stays_a_row(pid: int) -> None:
    rows = ProcessReader(NOBODY, namespace="pid:[1]").read([GpuProcess(pid, 3, 7)])
    assert [(row.pid, row.device_index, row.gpu_memory_bytes) for row in rows] == [(pid, 3, 7)]
    if pid:
        assert rows == (ProcessSnapshot(pid, 3, None, 7, None, None, "", kind="C", is_foreign=True),)


@pytest.mark.parametrize(("namespace", "is_gone"), [(process_reader.FIRST_NAMESPACE, True), ("pid:[1]", False)])
def test_a_number_that_is_missing_is_gone_where_numbers_are_the_drivers(namespace: str, is_gone: bool) -> None:
    [row] = ProcessReader(NOBODY, namespace=namespace).read([GpuProcess(NOBODY, 0, 5)])
    assert (row.is_gone, row.is_foreign) == (is_gone, not is_gone)


@pytest.mark.parametrize("pid", [1, (1 << 32) - 1])
def test_a_process_that_proc_hides_is_not_gone(monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    def hidden(_folder: str) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(process_reader, "read_stat", hidden)
    [row] = ProcessReader(NOBODY, namespace=process_reader.FIRST_NAMESPACE).read([GpuProcess(pid, 0, 5)])
    assert (row.is_gone, row.is_foreign) == (False, True)


def test_a_process_that_ended_has_no_details(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    reader, child = ProcessReader(NOBODY), start("sleep", "600")
    row_of(reader, child.pid, lambda row: row.command == WAIT)
    child.kill()
    child.wait(DEADLINE_S)
    assert row_of(reader, child.pid, lambda row: row.command == "").resident_bytes is None


def test_broken_text_and_control_characters_in_a_command(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = start("sh", "-c", "sleep 600; :", b"caf\xe9", b"\x1b[2J\n")
    row = row_of(ProcessReader(NOBODY), child.pid, lambda row: row.command.startswith("sh"))
    assert row.command == "sh -c sleep 600; : caf\ufffd \x1b[2J\n"
    row.command.encode("utf-8")


def test_a_very_long_command_is_cut(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    child = start("sh", "-c", "sleep 600; :", "x" * 50_000)
    row = row_of(ProcessReader(NOBODY), child.pid, lambda row: row.command.startswith("sh"))
    assert len(row.command) == process_reader.COMMAND_CHARACTERS


@pytest.mark.parametrize("with_children_files", [True, False])
def test_trials_are_found_below_the_program_and_keepers_are_left_out(
    start: Callable[..., subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    with_children_files: bool,
) -> None:
    if with_children_files and not os.path.exists("/proc/thread-self/children"):
        pytest.skip("this kernel has no /proc/PID/task/TID/children")
    if not with_children_files:
        monkeypatch.setattr(process_reader, "_children", lambda _pid: None)
    keeper = tmp_path / "keeper.py"
    keeper.write_text("import subprocess\nsubprocess.run(['sh', '-c', 'sleep 600; :'])\n")
    variables = {**os.environ, JOB_VARIABLE: "/job.json"}
    above = start(sys.executable, "-I", "-S", str(keeper), env=variables)
    start("sleep", "600", env={name: value for name, value in os.environ.items() if name != JOB_VARIABLE})
    reader = ProcessReader(os.getpid())
    deadline = time.monotonic() + DEADLINE_S
    while len(rows := [row for row in reader.read([]) if row.command.startswith("s")]) < 2:
        assert time.monotonic() < deadline, rows
        time.sleep(0.05)
    family = {child.pid for child in psutil.Process(above.pid).children(recursive=True)}
    assert {row.pid for row in rows} == family
    assert all(row.is_trial and row.device_index is None and row.gpu_memory_bytes is None for row in rows)
    on_gpu = reader.read([GpuProcess(rows[0].pid, 1, 9)])
    assert [(row.device_index, row.is_trial) for row in on_gpu if row.pid == rows[0].pid] == [(1, True)]
