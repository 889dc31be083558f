"""The host's changing numbers from fake /proc and cgroup trees, and from the real ones."""

from __future__ import annotations

import os
import socket
import time
from collections import namedtuple
from pathlib import Path

import pytest

from gputune_tui.telemetry.host_reader import HostReader, printable_text
from tests.telemetry.trees import GIB, Tree, write

Memory = namedtuple("Memory", "total available")


class Clock:
    """Every look takes a second, and the test may add to it."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path).groups("0::/job")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(tree: Tree, clock: Clock, tmp_path: Path) -> HostReader:
    return HostReader(tree.proc, tree.cgroup, tmp_path, clock)


@pytest.fixture(autouse=True)
def _a_node_of_four_cpus_and_64_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory(64 * GIB, 40 * GIB))


def stat(tree: Tree, *cpus: tuple[int, int, int]) -> None:
    """Write /proc/stat with (busy, idle, iowait) per CPU."""
    everything = [sum(column) for column in zip(*cpus, strict=True)]
    lines = [
        f"cpu{name} {busy - 3} 0 1 {idle} {iowait} 0 1 1 0 0"
        for name, (busy, idle, iowait) in [("  ", everything), *((str(i), cpu) for i, cpu in enumerate(cpus))]
    ]
    write(tree.proc, {"stat": "\n".join([*lines, "intr 1 2 3", "cpux"])})


def test_the_first_reading_has_no_rates(tree: Tree, reader: HostReader) -> None:
    stat(tree, (100, 100, 0), (100, 100, 0))
    found = reader.read()
    assert (found.cpu_fraction, found.per_cpu_fractions, found.iowait_fraction) == (None, (), None)
    assert (found.cpus, found.effective_cpus) == (2, 4.0)


def test_rates_are_differences(tree: Tree, reader: HostReader) -> None:
    stat(tree, (100, 100, 0), (100, 100, 0))
    reader.read()
    stat(tree, (175, 125, 0), (100, 150, 50))
    found = reader.read()
    assert found.per_cpu_fractions == (0.75, 0.0)
    assert found.cpu_fraction == 0.375
    assert found.iowait_fraction == 0.25


def test_readings_too_close_to_each_other_keep_the_last_rates(tree: Tree, reader: HostReader, clock: Clock) -> None:
    stat(tree, (100, 100, 0))
    reader.read()
    stat(tree, (150, 150, 0))
    assert reader.read().cpu_fraction == 0.5
    clock.now -= 0.9
    stat(tree, (151, 150, 0))
    assert reader.read().cpu_fraction == 0.5
    stat(tree, (200, 200, 0))
    assert reader.read().cpu_fraction == 0.5


def test_a_cpu_that_comes_makes_them_unknown_for_a_tick(tree: Tree, reader: HostReader) -> None:
    stat(tree, (100, 100, 0))
    reader.read()
    stat(tree, (150, 150, 0), (100, 100, 0))
    found = reader.read()
    assert (found.per_cpu_fractions, found.cpus) == ((), 2)
    stat(tree, (200, 200, 0), (100, 100, 0))
    assert reader.read().per_cpu_fractions == (0.5, 0.0)


def test_without_a_quota_the_allowed_cpus_count(
    tree: Tree, reader: HostReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1})
    stat(tree, (100, 100, 0), (100, 100, 0))
    reader.read()
    stat(tree, (200, 100, 0), (110, 190, 0))
    found = reader.read()
    assert (found.cpu_fraction, found.effective_cpus) == (0.1, 1.0)
    assert found.per_cpu_fractions == (1.0, 0.1)


def test_a_v2_quota_counts_the_groups_own_use(tree: Tree, reader: HostReader, clock: Clock) -> None:
    tree.put({"job/cpu.max": "200000 100000", "job/cpu.stat": "usage_usec 1000000\nuser_usec 1"})
    stat(tree, (100, 100, 0))
    assert reader.read().cpu_fraction is None
    tree.put({"job/cpu.stat": "usage_usec 4000000\nuser_usec 1"})
    clock.now += 1.0
    found = reader.read()
    assert (found.effective_cpus, found.cpu_fraction) == (2.0, 0.75)
    tree.put({"job/cpu.stat": "usage_usec 9000000"})
    assert reader.read().cpu_fraction == 1.0


@pytest.mark.parametrize("usage", ["cpu/a/cpuacct.usage", "cpuacct/a/cpuacct.usage"])
def test_a_v1_quota_counts_the_groups_own_use(tree: Tree, reader: HostReader, usage: str) -> None:
    tree.groups("4:cpu:/a").put({"cpu/a/cpu.cfs_quota_us": 400000, "cpu/a/cpu.cfs_period_us": 100000, usage: 10**9})
    reader.read()
    tree.put({usage: 3 * 10**9})
    assert reader.read().cpu_fraction == 0.5


def test_a_quota_without_a_usage_file_falls_back_to_the_machine(tree: Tree, reader: HostReader) -> None:
    tree.put({"job/cpu.max": "200000 100000"})
    stat(tree, (100, 100, 0))
    reader.read()
    stat(tree, (150, 150, 0))
    assert reader.read().cpu_fraction == 0.5


def test_counters_that_run_backwards_are_no_negative_use(tree: Tree, reader: HostReader) -> None:
    stat(tree, (100, 100, 50))
    reader.read()
    stat(tree, (99, 150, 40))
    found = reader.read()
    assert (found.cpu_fraction, found.iowait_fraction) == (0.0, 0.0)


@pytest.mark.parametrize("content", ["", "nonsense", "cpu 1 2", "cpu a b c d e f g h"])
def test_a_strange_proc_stat_is_unknown(tree: Tree, reader: HostReader, content: str) -> None:
    write(tree.proc, {"stat": content})
    reader.read()
    found = reader.read()
    assert (found.cpu_fraction, found.per_cpu_fractions, found.iowait_fraction) == (None, (), None)


def test_memory_is_the_machines_without_a_limit(tree: Tree, reader: HostReader) -> None:
    found = reader.read()
    assert (found.memory_used_bytes, found.memory_total_bytes, found.memory_limit_bytes) == (24 * GIB, 64 * GIB, None)


def test_memory_is_the_cgroups_with_a_limit(tree: Tree, reader: HostReader) -> None:
    tree.put({"job/memory.max": 8 * GIB, "job/memory.current": 5 * GIB, "job/memory.stat": f"inactive_file {GIB}"})
    found = reader.read()
    assert (found.memory_used_bytes, found.memory_total_bytes, found.memory_limit_bytes) == (
        4 * GIB,
        64 * GIB,
        8 * GIB,
    )


def test_no_shared_memory_is_unknown(tree: Tree, tmp_path: Path) -> None:
    found = HostReader(tree.proc, tree.cgroup, tmp_path / "missing").read()
    assert (found.shm_used_bytes, found.shm_total_bytes) == (None, None)


def test_broken_text_becomes_valid() -> None:
    broken = b"caf\xe9 \xc3\xa9 \x1b[31m\n".decode("utf-8", "surrogateescape")
    assert printable_text(broken) == "caf\ufffd é \x1b[31m\n"
    printable_text(broken).encode("utf-8")


def test_this_host_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    reader = HostReader()
    reader.read()
    deadline = time.monotonic() + 30
    while (found := reader.read()).cpu_fraction is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert found.hostname == socket.gethostname()
    assert len(found.per_cpu_fractions) == found.cpus >= 1
    assert all(0 <= fraction <= 1 for fraction in (found.cpu_fraction, *found.per_cpu_fractions))
    assert 0 < found.effective_cpus <= found.cpus
    assert found.memory_used_bytes is not None
    assert found.memory_total_bytes is not None
    assert 0 < found.memory_used_bytes < (found.memory_limit_bytes or found.memory_total_bytes)
