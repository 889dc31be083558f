"""The host's limits from fake /proc and cgroup trees, v1 and v2, and from the real ones."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path

import pytest

from gputune_tui.domain.environment import intra_op_threads
from gputune_tui.telemetry import host
from gputune_tui.telemetry.host import cgroup_folders, effective_cpus, host_limits
from tests.telemetry.trees import GIB, Tree

Memory = namedtuple("Memory", "total available")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture(autouse=True)
def _a_plain_node_of_64_cpus_and_256_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory(256 * GIB, 200 * GIB))


def cpus(tree: Tree) -> float:
    return effective_cpus(tree.proc, tree.cgroup)


def limits(tree: Tree) -> host.HostLimits:
    return host_limits(tree.proc, tree.cgroup)


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        ("50000 100000", 0.5),
        ("max 100000", 64.0),
        ("400000 100000", 4.0),
        ("9900000 100000", 64.0),
        ("", 64.0),
        ("garbage", 64.0),
        ("x y", 64.0),
    ],
)
def test_a_v2_quota(tree: Tree, cpu_max: str, expected: float) -> None:
    tree.groups("0::/job").put({"job/cpu.max": cpu_max})
    assert cpus(tree) == expected


@pytest.mark.parametrize(
    ("quota", "period", "expected"), [(50000, 100000, 0.5), (-1, 100000, 64.0), (0, 100000, 64.0), (250000, 50000, 5.0)]
)
@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_a_v1_quota(tree: Tree, mount: str, quota: int, period: int, expected: float) -> None:
    tree.groups("5:cpu,cpuacct:/docker/abc", "3:cpuset:/docker/abc", "1:name=systemd:/")
    tree.put({f"{mount}/docker/abc/cpu.cfs_quota_us": quota, f"{mount}/docker/abc/cpu.cfs_period_us": period})
    assert cpus(tree) == expected


def test_the_tightest_of_nested_quotas_counts(tree: Tree) -> None:
    tree.groups("0::/user/slice/job")
    tree.put(
        {
            "cpu.max": "max 100000",
            "user/cpu.max": "150000 100000",
            "user/slice/cpu.max": "800000 100000",
            "user/slice/job/cpu.max": "max 100000",
            "neighbour/cpu.max": "10000 100000",
        }
    )
    assert cpus(tree) == 1.5


def test_inside_a_container_the_mounts_root_is_its_own_group(tree: Tree) -> None:
    tree.groups("0::/kubepods/pod1/abc").put({"cpu.max": "200000 100000"})
    assert cpus(tree) == 2.0
    tree.put({"memory.max": 8 * GIB, "memory.current": 1 * GIB})
    assert limits(tree).memory_limit_bytes == 8 * GIB


def test_a_hybrid_layout_is_read_in_both(tree: Tree) -> None:
    tree.groups("4:cpu:/a", "0::/a")
    tree.put({"cpu/a/cpu.cfs_quota_us": 300000, "cpu/a/cpu.cfs_period_us": 100000, "unified/a/cpu.max": "max 100000"})
    assert cpus(tree) == 3.0


def test_affinity_counts_where_it_is_the_tightest(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.groups("0::/").put({"cpu.max": "400000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    assert cpus(tree) == 1.0


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SLURM_CPUS_PER_TASK": "6"}, 6.0),
        ({"SLURM_CPUS_ON_NODE": "12"}, 12.0),
        ({"SLURM_CPUS_PER_TASK": "6", "SLURM_CPUS_ON_NODE": "48"}, 6.0),
        ({"SLURM_CPUS_PER_TASK": "", "SLURM_CPUS_ON_NODE": "7"}, 7.0),
        ({"SLURM_CPUS_ON_NODE": "72(x2)"}, 64.0),
        ({"SLURM_CPUS_PER_TASK": "0"}, 64.0),
        ({"SLURM_CPUS_PER_TASK": "-4"}, 64.0),
        ({"SLURM_CPUS_PER_TASK": "500"}, 64.0),
    ],
)
def test_slurm(tree: Tree, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: float) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cpus(tree) == expected


def test_without_cgroups_the_node_itself_is_the_limit(tree: Tree) -> None:
    found = limits(tree)
    assert found.effective_cpus == 64.0
    assert found.memory_limit_bytes is None
    assert (found.memory_total_bytes, found.memory_available_bytes) == (256 * GIB, 200 * GIB)


@pytest.mark.parametrize("line", ["", "nonsense", "0:", "x::y", "::", "0::/../../etc", "7:memory"])
def test_a_strange_cgroup_file_is_no_limit(tree: Tree, line: str) -> None:
    tree.groups(line)
    assert limits(tree).memory_limit_bytes is None
    assert cpus(tree) == 64.0


def test_a_v2_memory_limit_leaves_what_is_not_used(tree: Tree) -> None:
    tree.groups("0::/job")
    tree.put({"job/memory.max": 10 * GIB, "job/memory.current": 4 * GIB, "job/memory.stat": "anon 5"})
    found = limits(tree)
    assert (found.memory_limit_bytes, found.memory_total_bytes) == (10 * GIB, 10 * GIB)
    assert found.memory_available_bytes == 6 * GIB


@pytest.mark.parametrize(("version", "field"), [(1, "total_inactive_file"), (2, "inactive_file")])
def test_page_cache_that_the_kernel_gives_back_is_not_used(tree: Tree, version: int, field: str) -> None:
    stat = f"cache 99\n{field} {3 * GIB}\nactive_file 5"
    if version == 2:
        tree.groups("0::/job")
        tree.put({"job/memory.max": 10 * GIB, "job/memory.current": 9 * GIB, "job/memory.stat": stat})
    else:
        tree.groups("9:memory:/job")
        tree.put(
            {
                "memory/job/memory.limit_in_bytes": 10 * GIB,
                "memory/job/memory.usage_in_bytes": 9 * GIB,
                "memory/job/memory.stat": stat,
            }
        )
    assert limits(tree).memory_available_bytes == 4 * GIB


@pytest.mark.parametrize("unlimited", ["max", "9223372036854771712", str(2**63 - 1), "-1x", ""])
def test_no_limit_in_every_spelling(tree: Tree, unlimited: str) -> None:
    tree.groups("0::/job", "9:memory:/job")
    tree.put({"job/memory.max": unlimited, "memory/job/memory.limit_in_bytes": unlimited})
    found = limits(tree)
    assert found.memory_limit_bytes is None
    assert found.memory_total_bytes == 256 * GIB


def test_the_tightest_of_nested_memory_limits_counts_with_its_own_usage(tree: Tree) -> None:
    tree.groups("0::/outer/inner")
    tree.put(
        {
            "outer/memory.max": 8 * GIB,
            "outer/memory.current": 7 * GIB,
            "outer/inner/memory.max": 16 * GIB,
            "outer/inner/memory.current": 1 * GIB,
        }
    )
    found = limits(tree)
    assert found.memory_limit_bytes == 8 * GIB
    assert found.memory_available_bytes == 1 * GIB


def test_the_node_may_have_less_than_the_limit_leaves(tree: Tree) -> None:
    tree.groups("0::/job").put({"job/memory.max": 500 * GIB, "job/memory.current": 1 * GIB})
    found = limits(tree)
    assert found.memory_total_bytes == 256 * GIB
    assert found.memory_available_bytes == 200 * GIB


def test_usage_above_the_limit_leaves_nothing(tree: Tree) -> None:
    tree.groups("0::/job").put({"job/memory.max": 4 * GIB, "job/memory.current": 5 * GIB})
    assert limits(tree).memory_available_bytes == 0


def test_an_unreadable_usage_is_taken_as_none(tree: Tree) -> None:
    tree.groups("0::/job").put({"job/memory.max": 4 * GIB})
    assert limits(tree).memory_available_bytes == 4 * GIB


def test_folders_are_those_that_exist_each_once(tree: Tree) -> None:
    tree.groups("0::/a/b").put({"a/b/cpu.max": "max 1", "c/cpu.max": "max 1"})
    assert cgroup_folders(tree.proc, tree.cgroup, "cpu") == [tree.cgroup / "a/b", tree.cgroup / "a", tree.cgroup]


@pytest.mark.parametrize(("count", "threads"), [(0.5, 1), (1.0, 1), (1.9, 1), (2.0, 2), (63.5, 63)])
def test_threads_are_whole_cpus(count: float, threads: int) -> None:
    assert intra_op_threads(count) == threads


def test_the_real_node_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = host_limits()
    assert 0 < found.effective_cpus <= len(os.sched_getaffinity(0))
    assert 0 <= found.memory_available_bytes <= found.memory_total_bytes
    assert found.memory_limit_bytes is None or found.memory_limit_bytes > 0
    assert found.shm_bytes is None or found.shm_bytes > 0
