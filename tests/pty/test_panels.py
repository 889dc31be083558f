"""The panels in a real terminal: what was drawn piece by piece is what a whole drawing shows, and the end is clean."""

from __future__ import annotations

import signal
from itertools import islice
from pathlib import Path

import pytest

from gputune_tui.telemetry.recording import Recorder, read_recording
from gputune_tui.telemetry.simulated import simulated_snapshots

from .conftest import Start
from .terminal import Terminal

SECONDS = 40
UPDATES = 8
"""Pieces to be seen before the picture is compared."""


def recorded(folder: Path, gpus: int) -> Path:
    path = folder / f"node-{gpus}"
    recorder = Recorder(path)
    for snapshot in islice(simulated_snapshots(5, gpus, interval_s=0.25), 4 * SECONDS):
        recorder.take(snapshot)
    recorder.close()
    return path


def picture(terminal: Terminal) -> list[list[tuple[str, str, str, bool, bool]]]:
    """Every character with its colours."""
    with terminal._lock:
        screen = terminal._screen
        return [
            [(c.data, c.fg, c.bg, c.bold, c.reverse) for c in (screen.buffer[y][x] for x in range(screen.columns))]
            for y in range(screen.lines)
        ]


@pytest.mark.parametrize(
    ("gpus", "size", "look"),
    [
        (8, (120, 40), ()),
        (1, (80, 24), ("--ascii",)),
        pytest.param(64, (60, 16), (), marks=pytest.mark.slow),
        pytest.param(16, (200, 50), (), marks=pytest.mark.slow),
    ],
)
def test_pieces_make_the_whole(
    gpus: int, size: tuple[int, int], look: tuple[str, ...], start: Start, tmp_path: Path
) -> None:
    terminal = start("monitor", "--replay", recorded(tmp_path, gpus), "--interval", "0.5s", *look, size=size)
    terminal.wait_for("RECORDED", "SIMULATED", "python")
    begun = len(terminal.writes)
    terminal.wait_until(lambda _: len(terminal.writes) >= begun + UPDATES, "some updates")
    terminal.keys("z")
    terminal.wait_for("paus")
    pieces = picture(terminal)
    terminal.resize(size[0] + 1, size[1])
    terminal.wipe()
    terminal.wait_for("paus", "python")
    terminal.resize(*size)
    terminal.wipe()
    terminal.wait_for("paus", "python")
    terminal.wait_until(lambda _: picture(terminal) == pieces, "the same picture")
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.assert_clean()
    terminal.wait_all_gone()


def test_this_node_is_shown_and_recorded(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "recording"
    terminal = start("monitor", "--record", path, size=(80, 24))
    terminal.wait_for("recording", "load", "COMMAND")
    terminal.send_signal(signal.SIGTERM)
    assert terminal.wait_exit() == 143
    terminal.wait_all_gone()
    assert list(read_recording(path))


def test_a_file_that_is_no_recording_is_a_sentence(start: Start, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}\n")
    terminal = start("monitor", "--replay", tmp_path / "other")
    assert terminal.wait_exit(60.0) == 2
    assert "is no recording of a node" in terminal.text()
