"""Host memory of a process tree as seen from outside: real processes, and one with worker processes that share."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.trial import host_memory
from gputune_tui.trial.host_memory import HostMemoryWatch, TreeMemory, TreeReader
from gputune_tui.trial.observations import Observations

MIB = 1 << 20
PARENT = f"""
import os, sys, tempfile
data = bytearray({64 * MIB})
for start in range(0, len(data), 4096): data[start] = 1
{{before}}
for number in range({{children}}):
    if os.fork() == 0:
        {{inside}}
        os.write(1, b"x")
        sys.stdin.read()
        os._exit(0)
os.write(1, b"x")
sys.stdin.read()
"""


@contextmanager
def tree(children: int, inside: str = "pass", before: str = "pass") -> Iterator[int]:
    """A process with 64 MiB that forks children, each of which runs `inside`."""
    code = PARENT.format(children=children, inside=inside, before=before)
    command = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            for _ in range(children + 1):
                process.stdout.read(1)
            yield process.pid
        finally:
            os.killpg(process.pid, 9)


def first(reader: TreeReader) -> TreeMemory:
    """The first reading, which on a busy machine may take several looks."""
    found = reader.read()
    while found is None and reader.is_in_first_round:
        found = reader.read()
    assert found is not None
    return found


def read(pid: int) -> TreeMemory:
    return first(TreeReader(pid, pid))


def test_what_children_share_with_their_parent_counts_once() -> None:
    with tree(3) as pid:
        found = read(pid)
    assert found.others == 3
    assert 64 * MIB <= found.main_bytes < 96 * MIB
    assert found.others_bytes < 16 * MIB


def test_what_children_take_for_themselves_counts() -> None:
    with tree(2, f"more = b'x' * {40 * MIB}") as pid:
        found = read(pid)
    assert 80 * MIB <= found.others_bytes < 100 * MIB
    assert found.total_bytes == found.main_bytes + found.others_bytes


def test_pages_that_a_child_has_written_to_are_its_own() -> None:
    with tree(1, "for start in range(0, len(data), 4096): data[start] = 2") as pid:
        assert 64 * MIB <= read(pid).others_bytes < 80 * MIB


def test_a_batch_on_its_way_counts_once_though_nobody_has_mapped_it() -> None:
    before = f"""
fd = os.memfd_create("batch")
os.write(fd, b"x" * {32 * MIB})
"""
    with tree(2, before=before) as pid:
        assert 32 * MIB <= read(pid).others_bytes < 48 * MIB


def test_growth_between_two_walks_is_seen(tmp_path: Path) -> None:
    go, done = tmp_path / "go", tmp_path / "done"
    inside = f"""os.write(1, b"x")
        import time
        while not os.path.exists({str(go)!r}): time.sleep(0.01)
        more = b"x" * {48 * MIB}
        open({str(done)!r}, "w").close()"""
    with tree(1, inside) as pid:
        reader = TreeReader(pid, pid)
        before = first(reader)
        reader._next_walk = float("inf")
        go.touch()
        deadline = time.monotonic() + 60
        while not done.exists():
            assert time.monotonic() < deadline
        after = reader.read()
    assert after is not None
    assert after.others_bytes - before.others_bytes >= 40 * MIB


def test_a_child_that_takes_the_place_of_another_shares_as_much(tmp_path: Path) -> None:
    again, done = tmp_path / "again", tmp_path / "done"
    before = f"""
import time
if os.fork() == 0:
    while not os.path.exists({str(again)!r}): time.sleep(0.01)
    os._exit(0)
if os.fork() == 0:
    os.write(1, b"x")
    sys.stdin.read()
os.write(1, b"x")
os.wait()
if os.fork() == 0:
    time.sleep(600)
open({str(done)!r}, "w").close()
"""
    code = PARENT.format(children=0, inside="pass", before=before)
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          start_new_session=True) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            process.stdout.read(2)
            reader = TreeReader(process.pid, process.pid)
            first(reader)
            reader._next_walk = float("inf")
            again.touch()
            deadline = time.monotonic() + 60
            while not done.exists():
                assert time.monotonic() < deadline
            found = reader.read()
        finally:
            os.killpg(process.pid, 9)
    assert found is not None
    assert found.others == 2
    assert found.others_bytes < 16 * MIB


def walked_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes whose page tables are read from now on, in their order."""
    walked: list[int] = []
    real = host_memory._fields

    def fields(path: Path, names: tuple[str, ...]) -> dict[str, int] | None:
        if path.name == "smaps_rollup":
            walked.append(int(path.parent.name))
        return real(path, names)

    monkeypatch.setattr(host_memory, "_fields", fields)
    return walked


def test_a_look_walks_no_further_than_its_time_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "WALK_S", 0.0)
    with tree(3, f"more = b'x' * {24 * MIB}") as pid:
        reader = TreeReader(pid, pid)
        walked = walked_of(monkeypatch)
        assert reader.read() is None
        assert reader.read() is None
        assert len(walked) == 2
        complete = reader.read()
        assert complete is not None
        assert complete.others == 3
        assert 72 * MIB <= complete.others_bytes < 96 * MIB
        assert sorted(walked) == sorted(set(walked))
        assert len(walked) == 3
        # A later round is counted once it is complete; until then the last one holds.
        reader._next_walk = 0.0
        for _ in range(3):
            again = reader.read()
            assert again is not None
            assert 72 * MIB <= again.others_bytes < 96 * MIB
        assert len(walked) == 6


def test_the_first_round_is_not_kept_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "WALK_S", 0.0)
    monkeypatch.setattr(host_memory, "INTERVAL_S", 1e6)
    with tree(2) as pid:
        watch = HostMemoryWatch()
        assert watch.look(pid, pid) is None
        assert watch.peak_bytes(None) is None
        assert watch.look(pid, pid) is not None
        assert watch.look(pid, pid) is None
        assert watch.peak_bytes(None) is not None


def test_a_tree_that_is_gone_is_unknown(tmp_path: Path) -> None:
    assert TreeReader(2**30, 2**30).read() is None
    assert HostMemoryWatch().look(2**30, 2**30) is None
    assert TreeReader(1, 1, tmp_path).read() is None


def test_a_look_is_taken_only_when_it_is_due() -> None:
    watch = HostMemoryWatch()
    me, deadline = os.getpid(), time.monotonic() + 30
    for _ in range(2):  # the first one may take several looks, one process each at least
        while watch.look(me, me) is None:
            assert time.monotonic() < deadline
        assert watch.look(me, me) is None


BYTES = st.integers(0, 1 << 45)


@given(st.lists(st.tuples(BYTES, BYTES), max_size=5), st.none() | BYTES)
def test_the_peak_holds_every_reading(readings: list[tuple[int, int]], own: int | None) -> None:
    watch = HostMemoryWatch()
    for main, others in readings:
        watch.take(TreeMemory(main, others, 1))
    peak = watch.peak_bytes(own)
    largest = max((main + others for main, others in readings), default=0)
    if own is None:
        assert peak == (largest or None)
    else:
        assert peak is not None
        assert peak >= max(largest, own)
        assert peak <= max(own, max((m for m, _ in readings), default=0)) + max((o for _, o in readings), default=0)


@pytest.mark.parametrize("looked", [False, True])
def test_without_any_figure_the_host_peak_is_unknown(looked: bool) -> None:
    seen = Observations()
    if looked:
        seen.host_memory.take(TreeMemory(5, 6, 1))
    assert seen.memory.host_peak_bytes == (11 if looked else None)
