"""The whole path by keyboard, from an empty study to an exported file, in terminals of three sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.run_cli import gputune

from .conftest import Start
from .played import HOLD, ends, played
from .terminal import Terminal

SMALL, LARGE = (80, 24), (200, 50)
WORKLOAD = """
import torch
class Workload:
    global_batch_size = 8
    def build_model(self): return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    def build_dataset(self): return torch.utils.data.TensorDataset(torch.randn(64, 8))
    def loss(self, model, batch): return model(batch[0]).pow(2).mean()
"""
TRIAL_S = 120.0
"""A real trial imports torch, which takes long on a machine that does other things."""


def loads_torch(terminal: Terminal) -> bool:
    """Whether the program that draws has torch in its memory."""
    return "libtorch" in Path(f"/proc/{terminal.process.pid}/maps").read_text()


@pytest.mark.parametrize(
    "size", [pytest.param(SMALL, id="80x24"), pytest.param(LARGE, marks=pytest.mark.slow, id="200x50")]
)
def test_from_an_empty_study_to_a_file(size: tuple[int, int], start: Start, tmp_path: Path) -> None:
    terminal = start(*played(tmp_path), size=size)
    terminal.wait_for("8 x 1", "r runs B")
    terminal.keys("?")
    terminal.wait_for("interrupted. Results so far are kept.", "Esc closes")
    terminal.keys("escape")
    terminal.wait_gone_from_screen("Esc closes")
    terminal.keys("right")
    terminal.wait_for("▸ bf16")
    terminal.keys("r")
    terminal.wait_for("1 done", "Idle")
    terminal.keys("a")
    if size == SMALL:
        terminal.wait_for("A against B: 1.00x")
        terminal.keys("s")
    else:
        terminal.wait_for("tied within 3 %", " pairs")
    terminal.wait_for("Idle", "3 done")
    (tmp_path / HOLD).touch()
    terminal.keys("u")
    terminal.wait_for("trial 1 of 2", "4x2", "block 1 of 4")
    terminal.keys("s")
    terminal.wait_for("stopped; results so far are kept", "3 done · 1 failed")
    terminal.keys("tab", "down", "e")
    terminal.wait_for("Export trial", "gputune.yaml")
    terminal.keys("other name.yaml", "enter")
    terminal.wait_for("is written to")
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.wait_all_gone(0.0)
    terminal.assert_clean()
    assert ends(tmp_path) == [("COMPLETE", None)] * 3 + [("FAIL", "KILLED")]
    assert yaml.safe_load((tmp_path / "other name.yaml").read_text())["schema"] == 1


def test_without_a_workload_the_form_opens_and_without_a_locale_all_is_ascii(start: Start, tmp_path: Path) -> None:
    terminal = start(*played(tmp_path)[1:], size=(80, 24), environment={"LANG": "C"})
    terminal.wait_for("Workload", "Enter opens", "lm  ", "1GiB", "hold=")
    terminal.keys("down")
    terminal.wait_for("workload      lm")
    terminal.keys(*["backspace"] * 2)
    terminal.wait_for("workload      lm, ./file.py")
    terminal.keys("./work.py", "tab", "tab", "tab", "2GiB")
    assert terminal.wait_for("workload      ./work.py", "budget        2GiB").isascii()
    terminal.keys("enter")
    assert terminal.wait_for("8 x 1", "r runs B", "budget 2.00 GiB").isascii()
    assert not loads_torch(terminal)
    terminal.keys("right")
    assert terminal.wait_for("> bf16").isascii()
    terminal.keys("r")
    assert terminal.wait_for("1 done", "Idle").isascii()
    terminal.keys("?")
    assert terminal.wait_for("Esc closes").isascii()
    terminal.keys("escape")
    terminal.wait_gone_from_screen("Esc closes")
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.assert_clean()
    assert ends(tmp_path) == [("COMPLETE", None)]


@pytest.mark.slow
def test_keys_that_arrive_in_one_piece_mean_what_they_say(start: Start, tmp_path: Path) -> None:
    """As over a link that stalls: what is typed into a dialog that is yet to open must not be taken for commands."""
    terminal = start(*played(tmp_path))
    terminal.wait_for("8 x 1", "r runs B")
    terminal.keys("r")
    terminal.wait_for("1 done")
    terminal.keys("tab", "enter")
    terminal.wait_for("Trial 1")
    terminal.keys("escape")
    terminal.wait_gone_from_screen("Trial 1")
    terminal.keys("tab", "tab", "e", "rrrruuuuaaaaqqqq")
    terminal.wait_for("Export trial")
    terminal.keys("escape")
    terminal.wait_gone_from_screen("Export trial")
    terminal.keys("m")
    terminal.wait_for("Messages", "trial 1: ")
    terminal.keys("escape")
    terminal.wait_for("Idle", "r runs B")
    assert ends(tmp_path) == [("COMPLETE", None)]


@pytest.mark.slow
def test_with_a_real_workload_to_a_file_that_verify_takes(start: Start, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(WORKLOAD)
    space = ("--space", "micro_batch_size=2,1")
    terminal = start("./work.py", "--device", "cpu", "--study", tmp_path / "study", *space)
    terminal.wait_for("Running: open")
    terminal.wait_for("8 x 1", "Idle", limit_s=TRIAL_S)
    terminal.keys("down", "left")
    terminal.wait_for("▸ 4 x 2")
    terminal.keys("r")
    terminal.wait_for("measuring, block", limit_s=TRIAL_S)
    assert not loads_torch(terminal)
    terminal.wait_for("1 done", "Idle", limit_s=TRIAL_S)
    terminal.keys("a")
    terminal.wait_for("A against B: ", "1 pair", limit_s=TRIAL_S)
    terminal.keys("s")
    terminal.wait_for("Idle", "stopped; results so far are kept")
    terminal.keys("u")
    terminal.wait_for("trial 1 of 2", "2 settings, 2 to run", "measuring", limit_s=TRIAL_S)
    terminal.keys("s")
    terminal.wait_for("Idle", "1 failed")
    terminal.keys("tab", "e")
    terminal.wait_for("Export trial", "gputune.yaml")
    terminal.keys("enter")
    terminal.wait_for("is written to", f"{tmp_path}"[-20:])
    terminal.keys("q")
    assert terminal.wait_exit() == 0
    terminal.wait_all_gone(0.0)
    terminal.assert_clean()
    done = gputune("verify", "gputune.yaml", cwd=tmp_path)
    assert done.returncode in (0, 6), "6: on a machine that became busy it is slower than it was"
    assert "throughput" in done.stdout
