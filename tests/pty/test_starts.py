"""Starts that cannot succeed end in one sentence; odd terminals and sizes are drawn on as well as they can be."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import Start
from .played import ends, in_the_middle, played, release
from .terminal import ALTERNATE_SCREEN, DEADLINE_S, ROOT

COLOUR = re.compile(rb"\x1b\[[0-9;]*\b(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38;[25]|48;[25])[0-9;]*m")


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_stream_that_is_no_terminal(stream: str, tmp_path: Path) -> None:
    master, slave = os.openpty()
    words = [sys.executable, "-m", "gputune_tui", "lm"]
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL if stream == "stdin" else slave,
        stdout=subprocess.DEVNULL if stream == "stdout" else slave,
        stderr=subprocess.PIPE if stream == "stderr" else slave,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT)},
        timeout=DEADLINE_S,
        check=False,
    )
    os.close(slave)
    said = done.stderr if stream == "stderr" else os.read(master, 1 << 16)
    os.close(master)
    assert done.returncode == 5
    assert b"the screen needs a terminal" in said
    assert b"gputune-tui tune" in said
    assert b"\x1b" not in said


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_cannot_place_a_cursor(term: str | None, start: Start) -> None:
    terminal = start("lm", environment={"TERM": term})
    assert terminal.wait_exit() == 5
    assert "cannot place a cursor" in terminal.text()
    assert b"\x1b" not in terminal.output
    terminal.assert_clean()


def test_an_unknown_word(start: Start) -> None:
    terminal = start("nosuch")
    assert terminal.wait_exit() == 2
    assert "there is no command and no built-in workload 'nosuch'" in terminal.text()
    assert b"\x1b" not in terminal.output
    terminal.assert_clean()


@pytest.mark.parametrize("words", [("--help",), ("screen", "--help")])
def test_help_is_text(words: tuple[str, ...], start: Start) -> None:
    terminal = start(*words)
    assert terminal.wait_exit() == 0
    assert "Usage: gputune-tui" in terminal.text()
    assert ALTERNATE_SCREEN not in terminal.modes()
    terminal.assert_clean()


@pytest.mark.slow
def test_a_syntax_error_is_said_and_the_form_opens_again(start: Start, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("class Workload:\n    def build_model(self) return None\n")
    terminal = start("./broken.py", "--device", "cpu", "--study", tmp_path / "study")
    terminal.wait_for("Running: open")
    terminal.wait_for("Idle", "no workload yet")
    terminal.keys("m")
    shown = terminal.wait_for("Messages", "SyntaxError: expected", "(broken.py:2)")
    assert "Traceback" not in shown
    terminal.keys("escape")
    terminal.wait_gone_from_screen("Messages")
    terminal.keys("w")
    terminal.wait_for("Enter opens", "./broken.py")
    terminal.keys("escape")
    terminal.wait_gone_from_screen("Enter opens")
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.assert_clean()


def test_from_20_by_5_and_without_colour(start: Start, tmp_path: Path) -> None:
    terminal = start(*played(tmp_path), size=(20, 5), environment={"NO_COLOR": "1"})
    terminal.wait_for("Monitor")
    terminal.resize(120, 40)
    terminal.wait_for("8 x 1", "r runs B")
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.assert_clean()
    assert COLOUR.search(bytes(terminal.output)) is None


@pytest.mark.slow
def test_a_storm_of_sizes(start: Start, tmp_path: Path) -> None:
    terminal = in_the_middle(start, tmp_path, child=False)
    dice = random.Random(7)
    for _ in range(50):
        terminal.resize(dice.choice([1, 2, 5, dice.randint(1, 250)]), dice.choice([1, 2, 5, dice.randint(1, 70)]))
        if dice.random() < 0.3:
            terminal.keys(dice.choice(["up", "down", "left", "tab", "1", "2", "?", "m", "w", "escape"]))
    terminal.resize(1, 1)
    release(tmp_path)
    terminal.resize(120, 40)
    terminal.wait_for("GPUs", "q quit")
    deadline = time.monotonic() + DEADLINE_S
    while "Esc" in terminal.text():  # of the dialogs that were opened
        assert time.monotonic() < deadline, terminal.text()
        terminal.keys("escape")
        time.sleep(0.5)
    terminal.wait_for("2 done", "Idle", "8 x 1")
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.assert_clean()
    assert ends(tmp_path) == [("COMPLETE", None)] * 2
