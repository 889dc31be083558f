"""The use of a trial's CPUs by others, from a made-up /proc and from a real busy neighbour."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputune_tui.trainer import contention
from gputune_tui.trainer.contention import CpuReading, CpuWatch, shares

BUSY = "while True: pass"


def write_stat(proc: Path, rows: dict[str, list[int]]) -> None:
    proc.mkdir(exist_ok=True)
    (proc / str(os.getpid()) / "task" / str(os.getpid())).mkdir(parents=True, exist_ok=True)
    (proc / str(os.getpid()) / "task" / str(os.getpid()) / "children").write_text("")
    lines = [f"{name} {' '.join(map(str, row))}" for name, row in rows.items()]
    (proc / "stat").write_text("\n".join([*lines, "intr 12 0 0", "ctxt 9"]) + "\n")


def test_only_the_cpus_that_may_be_used_count(tmp_path: Path) -> None:
    hz = os.sysconf("SC_CLK_TCK")
    row = [hz, hz, hz, 7 * hz, hz, hz, hz, 2 * hz, 0, 0]
    write_stat(tmp_path / "p", {"cpu": [9 * hz] * 10, "cpu0": row, "cpu1": [0] * 10, "cpu12": row})
    found = CpuWatch(tmp_path / "p", frozenset({0})).read()
    assert found is not None
    assert (found.busy_s, found.idle_s, found.steal_s) == (5, 8, 2)
    both = CpuWatch(tmp_path / "p", frozenset({0, 12})).read()
    assert both is not None
    assert both.busy_s == 10


@pytest.mark.parametrize("text", ["", "cpu 1 2\n", "cpu0 1 2\n", "cpu0 a b c d e f g h\n"])
def test_what_cannot_be_read_is_unknown(tmp_path: Path, text: str) -> None:
    write_stat(tmp_path / "p", {})
    (tmp_path / "p" / "stat").write_text(text)
    assert CpuWatch(tmp_path / "p", frozenset({0})).read() is None
    assert CpuWatch(tmp_path / "nowhere").read() is None


def test_a_kernel_that_does_not_tell_children_is_unknown(tmp_path: Path) -> None:
    write_stat(tmp_path / "p", {"cpu0": [1] * 10})
    (tmp_path / "p" / str(os.getpid()) / "task" / str(os.getpid()) / "children").unlink()
    assert CpuWatch(tmp_path / "p", frozenset({0})).read() is None


def test_shares_add_up() -> None:
    found = shares(CpuReading(10, 5, 1, 4), CpuReading(16, 8, 2, 8))
    assert found is not None
    assert (found.others_fraction, found.idle_fraction, found.steal_fraction) == (0.2, 0.3, 0.1)
    assert shares(None, CpuReading(1, 1, 1, 1)) is None
    assert shares(CpuReading(1, 1, 1, 1), CpuReading(1, 1, 1, 1)) is None
    # Own use is counted in microseconds, the CPUs' in ticks: never less than nothing is left for the others.
    assert shares(CpuReading(0, 0, 0, 0), CpuReading(1, 1, 0, 1.01)) is not None


def test_a_busy_child_is_ours() -> None:
    watch = CpuWatch()
    before = watch.read()
    if before is None:
        pytest.skip("this kernel does not tell children (CONFIG_PROC_CHILDREN)")
    child = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        deadline = time.monotonic() + 60
        while (after := watch.read()) is not None and after.own_s - before.own_s < 0.5:
            assert time.monotonic() < deadline, "a busy child was not counted as ours"
    finally:
        child.kill()
        child.wait()


def test_what_a_worker_waited_for_is_the_workers(tmp_path: Path) -> None:
    hz, worker = os.sysconf("SC_CLK_TCK"), 7
    write_stat(tmp_path, {"cpu0": [9 * hz] * 10})
    me = tmp_path / str(os.getpid()) / "task" / str(os.getpid())
    me.joinpath("children").write_text(f"{worker}\n")
    folder = tmp_path / str(worker)
    (folder / "task").mkdir(parents=True)

    def own_s(user: int, system: int, childrens_user: int, childrens_system: int) -> float:
        times = f"{user * hz} {system * hz} {childrens_user * hz} {childrens_system * hz}"
        folder.joinpath("stat").write_text(f"{worker} (a ) name) S 1 1 1 0 -1 4194304 9 9 9 9 {times} 20 0 1 0 5\n")
        found = CpuWatch(tmp_path, frozenset({0})).read()
        assert found is not None
        return found.own_s

    alone = own_s(1, 2, 0, 0)
    # The test's own use goes on meanwhile, far below the seconds that are told.
    assert own_s(1, 2, 300, 400) - alone == pytest.approx(700, abs=30)


WATCH = """
from gputune_tui.trainer.contention import CpuWatch, shares
watch = CpuWatch()
before = watch.read()
while before is not None:
    found = shares(before, watch.read())
    if found is not None and found.others_fraction > {wanted}:
        break
"""


def test_a_busy_neighbour_is_not_ours() -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        code = WATCH.format(wanted=0.2 / len(os.sched_getaffinity(0)))
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    finally:
        neighbour.kill()
        neighbour.wait()


class Workers(CpuWatch):
    """Children whose CPU ticks grow as they are told to, reading by reading."""

    def __init__(self, *ticks: int) -> None:
        super().__init__()
        self._ticks = iter(ticks)
        self.last = 0

    def _childrens_ticks(self) -> int:
        self.last = next(self._ticks, self.last + 1)
        return self.last


def test_processes_are_at_rest_once_they_use_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "REST_S", 0.0)
    workers = Workers(5, 9, 12, 12, 99)
    workers.wait_for_rest()
    assert workers.last == 12


def test_processes_that_never_rest_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contention, "REST_S", 0.0)
    monkeypatch.setattr(contention, "LONGEST_REST_S", 0.05)
    Workers().wait_for_rest()


def test_without_children_it_comes_back() -> None:
    CpuWatch().wait_for_rest()
