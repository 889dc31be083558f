"""The program itself in a hostile place: closed or full standard files, a study that vanishes, an arm that fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.running import HEAD
from tests.cli.run_cli import document, gputune

GPUTUNE = f"{sys.executable} -m gputune_tui"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("workloads >&-", 0),
        ("workloads 2>&-", 0),
        ("workloads <&- >&- 2>&-", 0),
        ("workloads >/dev/full", 5),
        ("trial ./nothing.py 2>&-", 2),
        ("trial ./nothing.py 2>/dev/full", 2),
        ("workloads | true; exit ${PIPESTATUS[0]}", 0),
    ],
)
def test_closed_and_full_standard_files(line: str, code: int) -> None:
    done = subprocess.run(["bash", "-c", f"{GPUTUNE} {line}"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("place", ["missing/x.json", "."])
def test_a_place_for_json_is_refused_before_anything_runs(place: str, tmp_path: Path) -> None:
    done = gputune("trial", "lm", "--json", place, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


FOUR_FAILS = """
class Workload(Base):
    def loss(self, model, batch):
        if len(batch) == 4: raise ValueError("four [b]")
        return super().loss(model, batch)
"""


@pytest.mark.slow
def test_the_arm_that_was_not_measured_is_no_finished_trial(tmp_path: Path) -> None:
    (tmp_path / "wl.py").write_text(HEAD + FOUR_FAILS)
    study = ("--device", "cpu", "--budget", "2GiB", "--study", "study", "--json", "-")
    done = gputune("ab", "./wl.py", "--a", "micro_batch_size=8", "--b", "micro_batch_size=4", *study, cwd=tmp_path)
    assert done.returncode == 4
    assert "ValueError: four [b] (wl.py:" in done.stderr
    assert document(done)["verdict"] == "undecided"
    tuned = gputune("tune", "./wl.py", "--space", "micro_batch_size=8,4", *study, cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    trials = document(tuned)["trials"]
    measured = [t for t in trials if t["samples_per_s"]]
    assert [t["id"] for t in measured] == [document(tuned)["best"]]
    assert "1 already finished" in tuned.stderr, "the failure of B is known, A is to be measured"


VANISHING = """
import shutil
class Workload(Base):
    def build_model(self):
        shutil.rmtree("study")
        return super().build_model()
"""


@pytest.mark.slow
def test_a_study_that_the_workload_deletes_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "wl.py").write_text(HEAD + VANISHING)
    done = gputune("trial", "./wl.py", "--device", "cpu", "--study", "study", "--json", "out.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    again = gputune(
        "tune", "./wl.py", "--space", "micro_batch_size=8", "--device", "cpu", "--study", "study", cwd=tmp_path
    )
    assert again.returncode == 0, again.stderr
    assert "1 already finished" in again.stderr
    assert json.loads((tmp_path / "out.json").read_text())["trials"][0]["state"] == "COMPLETE"
