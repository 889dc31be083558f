"""The table of processes: sorted, filtered, as a tree, opened in place; and the menu of signals."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gputune_tui.domain.telemetry import ProcessSnapshot
from gputune_tui.telemetry.proc_stat import read_stat
from gputune_tui.tui.glyphs import ASCII, UNICODE
from gputune_tui.tui.process_table import SORTS, View, arranged, header_line, process_line
from gputune_tui.tui.screens.signal_dialog import SignalDialog
from tests.tui import nodes
from tests.tui.scripted import Driven, drive

GIB = 1 << 30
DEADLINE_S = 30.0
TRAIN = nodes.process("python train.py", pid=10, gpu_memory_bytes=9 * GIB, sm_fraction=0.9, started=5, parent_pid=1)
WORKER = nodes.process("python worker", pid=11, gpu_memory_bytes=GIB, sm_fraction=None, started=6, parent_pid=10)
SERVE = nodes.process("serve --port 1", "u2", pid=7, gpu_memory_bytes=3 * GIB, sm_fraction=0.2, started=4, parent_pid=1)
ALL = (WORKER, TRAIN, SERVE)


def pids(view: View) -> list[int]:
    return [process.pid for process, _ in arranged(ALL, view)]


def by(name: str, **more: object) -> View:
    (place,) = [place for place, (known, _) in enumerate(SORTS) if known == name]
    return replace(View(place), **more)  # type: ignore[arg-type]


def test_every_column_sorts_and_unknown_is_last() -> None:
    assert pids(View()) == [11, 10, 7]
    assert pids(by("GPU memory")) == [10, 7, 11]
    assert pids(by("GPU memory", is_inverted=True)) == [11, 7, 10]
    assert pids(by("SM %")) == [10, 7, 11]
    assert pids(by("SM %", is_inverted=True)) == [7, 10, 11]
    assert pids(by("PID")) == [7, 10, 11]
    assert pids(by("command")) == [10, 11, 7]
    for place in range(len(SORTS)):
        assert sorted(pids(View(place))) == [7, 10, 11]
    assert View().sorted_by(-1).sort == len(SORTS) - 1


def test_a_filter_takes_words_and_leaves_others() -> None:
    assert pids(View(filter="PYTHON")) == [11, 10]
    assert pids(View(filter="python !worker")) == [10]
    assert pids(View(filter="u2")) == [7]
    assert pids(View(filter="none of this")) == []


def test_a_tree_hangs_children_below_their_parents() -> None:
    assert [(p.pid, depth) for p, depth in arranged(ALL, View(is_tree=True))] == [(10, 0), (11, 1), (7, 0)]
    circle = (replace(TRAIN, parent_pid=11), WORKER)
    assert sorted(p.pid for p, _ in arranged(circle, View(is_tree=True))) == [10, 11]
    both = (TRAIN, replace(TRAIN, device_index=1), WORKER)
    assert [p.pid for p, _ in arranged(both, View(is_tree=True))] == [10, 11, 10]


def test_a_row_has_what_its_width_has_room_for() -> None:
    def text(process: ProcessSnapshot, width: int = 100, has_gpus: bool = True) -> str:
        return "".join(part for part, _ in process_line(process, has_gpus, width, UNICODE))

    header = header_line(True, 100)[0][0]
    row = text(replace(TRAIN, kind="C", running_s=3725.0))
    for name, value in (("SM%", "90"), ("CPU%", "150"), ("TIME", "1h02"), ("GPU-MEM", "9.00 GiB")):
        end = header.index(name) + len(name)
        assert row[:end].endswith(value), (name, row)
    assert "USER" not in header_line(True, 60)[0][0]
    assert "GPU" not in header_line(False, 100)[0][0]
    foreign = text(nodes.process("", None, is_foreign=True, pid=4120))
    assert "host pid 4120" in foreign
    assert "another namespace" in foreign
    for width in (100, 60):
        small = text(nodes.process("", None, is_foreign=True, pid=4120, gpu_memory_bytes=5 << 20), width)
        end = header_line(True, width)[0][0].index("GPU-MEM") + len("GPU-MEM")
        assert small[:end].endswith("5.00 MiB"), "a foreign process stands in the same columns"
    ours = text(replace(TRAIN, is_trial=True, device_index=None, gpu_memory_bytes=None, sm_fraction=None))
    assert ours.startswith("▸    - ")
    assert process_line(TRAIN, True, 100, ASCII, depth=1)[1][0] == "  python train.py"


def test_keys_sort_filter_and_open() -> None:
    async def steps(it: Driven) -> None:
        node = nodes.node(*nodes.gpus(1), processes=ALL)
        await it.tick(node)
        await it.press("1")
        await it.settle()
        table = it.node.processes
        assert table.has_focus
        await it.press("down", "down")
        assert table.selected == SERVE
        await it.press("greater_than_sign")
        assert "by GPU memory" in it.text()
        assert table.selected == SERVE
        assert [row.key[0] for row in table.rows] == [10, 7, 11]  # type: ignore[index]
        await it.press("I")
        assert [row.key[0] for row in table.rows] == [11, 7, 10]  # type: ignore[index]
        await it.press("less_than_sign", "f5")
        assert "└ python worker" in it.text()
        assert "by GPU · tree" in it.text()
        # The selected one opens in place, and stays open while others come and go.
        await it.press("t", "enter")
        assert "parent 1 · user u2" in it.text()
        await it.tick(replace(node, processes=(SERVE, TRAIN)))
        assert table.selected == SERVE
        assert "parent 1 · user u2" in it.text()
        await it.press("down")
        assert table.selected == TRAIN
        await it.press("up", "enter")
        assert "parent 1" not in it.text()
        await it.press("slash")
        await it.type("python")
        await it.press("enter")
        assert [row.key[0] for row in table.rows] == [10]  # type: ignore[index]
        assert "filter: python" in it.text()
        await it.press("slash")
        await it.type("nobody")
        await it.press("enter")
        assert "no process passes the filter" in it.text()
        assert not table.shown
        await it.press("x", "enter")
        assert not it.in_dialog()
        await it.press("backslash")
        await it.type("")
        await it.press("enter")
        assert len(table.rows) == 2

    drive(steps, size=(220, 40))


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
    yield made
    made.kill()
    made.wait(DEADLINE_S)


def test_a_signal_is_chosen_and_sent(child: subprocess.Popen[bytes]) -> None:
    started = read_stat(f"/proc/{child.pid}").started
    mine = nodes.process("sleep 600", getpass.getuser(), pid=child.pid, started=started)

    async def steps(it: Driven) -> None:
        await it.tick(nodes.node(*nodes.gpus(1), processes=(mine, TRAIN)))
        # Without the keys of the list nothing is asked: k and x are other keys elsewhere.
        await it.press("x")
        assert not it.in_dialog()
        await it.press("1", "f9")
        assert it.in_dialog()
        await it.settle()
        assert "sleep 600" in it.text()
        # The first choice sends nothing.
        await it.press("enter")
        assert not it.in_dialog()
        assert child.poll() is None
        await it.press("x", "escape")
        assert child.poll() is None
        # What the process has become meanwhile is looked at before it is sent.
        dialog = SignalDialog(replace(mine, started=1), is_readonly=False)
        it.app.push_screen(dialog)
        await it.settle()
        await it.press("down", "enter")
        await it.until(lambda: "another has its number" in it.text())
        assert child.poll() is None
        await it.press("escape", "x", "down", "down", "up", "enter")
        assert not it.in_dialog()
        assert child.wait(DEADLINE_S) == -15

    drive(steps, size=(120, 40))


@pytest.mark.parametrize(
    ("process", "is_readonly", "words"),
    [
        (nodes.process(user="somebody", started=3), False, "belongs to somebody"),
        (nodes.process(user=getpass.getuser(), is_foreign=True), False, "another namespace"),
        (nodes.process(user=getpass.getuser(), started=3), True, "--readonly"),
    ],
)
def test_what_may_not_be_signalled_says_why(process: ProcessSnapshot, is_readonly: bool, words: str) -> None:
    async def steps(it: Driven) -> None:
        it.app.push_screen(SignalDialog(process, is_readonly))
        await it.until(lambda: words in " ".join(it.text().split()))
        assert "SIGKILL" not in it.text()
        await it.press("down", "enter")
        assert not it.in_dialog()

    drive(steps)
