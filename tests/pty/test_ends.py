"""Every way in which the program can end amid a trial: nothing runs on, nothing is lost, the line is clean."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from .conftest import Start
from .played import ends, in_the_middle, release
from .terminal import GONE_S, Terminal

KEPT = [("COMPLETE", None), ("FAIL", "KILLED")]
KEPT_BY_NOBODY = [("COMPLETE", None), ("FAIL", "STALE")]


def jam(terminal: Terminal) -> None:
    """Stop reading, and have the program write until nothing more fits into the line and into its own queue."""
    terminal.pause()
    for number in range(60):
        terminal.resize(120 + number % 2, 40)
        time.sleep(0.02)


def test_q(start: Start, tmp_path: Path) -> None:
    terminal = in_the_middle(start, tmp_path)
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.wait_all_gone(0.0)
    terminal.assert_clean()
    assert f"results are kept in {tmp_path}/study" in terminal.text()
    assert ends(tmp_path) == KEPT


@pytest.mark.slow
def test_q_while_the_trial_and_the_reader_of_the_panels_both_hang(start: Start, tmp_path: Path) -> None:
    terminal = in_the_middle(start, tmp_path)
    os.kill(terminal.process_with("telemetry.sampler"), signal.SIGSTOP)
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.wait_all_gone(0.0)
    terminal.assert_clean()
    assert ends(tmp_path) == KEPT


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal(number: signal.Signals, start: Start, tmp_path: Path) -> None:
    terminal = in_the_middle(start, tmp_path)
    terminal.send_signal(number)
    assert terminal.wait_exit() == 128 + number
    terminal.wait_all_gone(0.0)
    terminal.assert_clean()
    assert ends(tmp_path) == KEPT


@pytest.mark.slow
def test_kill_9(start: Start, tmp_path: Path) -> None:
    terminal = in_the_middle(start, tmp_path)
    terminal.send_signal(signal.SIGKILL)
    assert terminal.wait_exit() == -signal.SIGKILL
    terminal.wait_all_gone()
    assert ends(tmp_path) == KEPT


@pytest.mark.parametrize("handling", [signal.SIG_DFL, signal.SIG_IGN], ids=["as usual", "under nohup"])
def test_the_terminal_is_closed(start: Start, tmp_path: Path, handling: signal.Handlers) -> None:
    before = signal.signal(signal.SIGHUP, handling)  # which the program inherits
    try:
        terminal = in_the_middle(start, tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    terminal.hang_up()
    assert terminal.wait_exit() == 128 + signal.SIGHUP
    terminal.wait_all_gone(0.0)
    assert ends(tmp_path) == KEPT


def test_kill_9_of_the_engine_is_said_and_r_works_again(start: Start, tmp_path: Path) -> None:
    terminal = in_the_middle(start, tmp_path)
    os.kill(terminal.process_with("engine.server"), signal.SIGKILL)
    terminal.wait_for("the engine process ended (signal 9, SIGKILL)", "Idle")
    (tmp_path / "hold").unlink()
    terminal.keys("r")
    terminal.wait_for("2 done · 1 failed", "Idle")
    assert ends(tmp_path) == [*KEPT_BY_NOBODY, ("COMPLETE", None)]
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.wait_all_gone(0.0)
    terminal.assert_clean()


@pytest.mark.slow
def test_a_stopped_screen_stops_no_trial(start: Start, tmp_path: Path) -> None:
    terminal = in_the_middle(start, tmp_path)
    terminal.send_signal(signal.SIGSTOP)
    release(tmp_path)
    time.sleep(3.0)  # long enough for watchdogs to believe that something hangs
    assert "1 done" in terminal.text()
    terminal.wipe()
    terminal.send_signal(signal.SIGCONT)
    terminal.wait_for("2 done", "Idle", "GPUs", "8 x 1", "q quit")
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.wait_all_gone(0.0)
    terminal.assert_clean()


@pytest.mark.slow
def test_a_terminal_that_does_not_read_stops_no_trial_and_goes_on(start: Start, tmp_path: Path) -> None:
    terminal = in_the_middle(start, tmp_path)
    jam(terminal)
    release(tmp_path)
    terminal.wipe()
    terminal.go_on()
    terminal.wait_for("2 done", "Idle", "GPUs", "8 x 1", "q quit")
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.assert_clean()


@pytest.mark.slow
def test_q_on_a_terminal_that_reads_no_more(start: Start, tmp_path: Path) -> None:
    terminal = in_the_middle(start, tmp_path)
    jam(terminal)
    terminal.keys("q")
    terminal.wait_all_gone()
    assert terminal.wait_exit() == 0
    assert ends(tmp_path) == KEPT


@pytest.mark.slow
def test_sigterm_on_a_terminal_that_reads_no_more(start: Start, tmp_path: Path) -> None:
    terminal = in_the_middle(start, tmp_path)
    jam(terminal)
    terminal.send_signal(signal.SIGTERM)
    terminal.wait_all_gone()
    assert terminal.wait_exit() == 128 + signal.SIGTERM
    assert ends(tmp_path) == KEPT


@pytest.mark.slow
def test_a_hang_up_of_a_terminal_that_reads_no_more(start: Start, tmp_path: Path) -> None:
    terminal = in_the_middle(start, tmp_path)
    jam(terminal)
    terminal.hang_up()
    terminal.wait_all_gone(GONE_S)
    assert terminal.wait_exit() == 128 + signal.SIGHUP
    assert ends(tmp_path) == KEPT
