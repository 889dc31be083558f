"""The workloads are found from a wheel installed into an empty environment, and from the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from gputune_tui.domain.builtin import builtin_names, builtin_path

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_source_tree_has_its_workloads() -> None:
    assert "lm" in builtin_names()
    path = builtin_path("lm")
    assert path is not None
    assert path.is_file()


@pytest.mark.slow
def test_a_wheel_in_an_empty_environment_has_its_workloads(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    wheel = next(tmp_path.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "gputune_tui/workloads/lm.py" in names
    assert not [name for name in names if name.startswith("tests/") or name.endswith(".pyc")]
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty/bin/python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # The libraries it needs come from this environment's folder; gputune_tui itself is only in the empty one.
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (site / "click").symlink_to(Path(sysconfig.get_path("purelib")) / "click")
    listing = run(tmp_path / "empty/bin/gputune-tui", "workloads", cwd=tmp_path)
    line = next(line for line in listing.splitlines() if line.startswith("lm "))
    assert str(site / "gputune_tui/workloads/lm.py") in line
