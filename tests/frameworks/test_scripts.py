"""Scripts under training frameworks as they are seen and tuned; needs the extra `test-frameworks`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.cli.run_cli import gputune
from tests.trainer.script.detecting import facts_of
from tests.trainer.script.running import SCRIPTS

CASES = [
    ("accelerate", "with_accelerate.py", "accelerate", 16),
    ("transformers", "hf_trainer.py", "transformers.Trainer", 8),
    ("lightning", "lightning_script.py", "Lightning", 16),
]


@pytest.mark.parametrize(("package", "script", "framework", "batch"), CASES)
def test_a_framework_is_seen_for_what_it_is(
    tmp_path: Path, package: str, script: str, framework: str, batch: int
) -> None:
    pytest.importorskip(package)
    facts = facts_of(tmp_path, script)
    assert (facts.framework, facts.micro_batch_size, facts.accumulation_steps) == (framework, batch, 1)
    assert facts.loader is not None
    assert facts.loader.place.startswith(script)
    assert ("accumulation_steps" in facts.refused) == (framework != "accelerate")


@pytest.mark.parametrize(("package", "script", "framework", "batch"), CASES)
def test_loader_and_precision_are_set_under_a_framework(
    tmp_path: Path, package: str, script: str, framework: str, batch: int
) -> None:
    pytest.importorskip(package)
    done = gputune(
        "tune", "--device", "cpu", "--study", tmp_path / "study", "--json", "-",
        "--space", "num_workers=0,1;precision=fp32,bf16", "--", sys.executable, SCRIPTS / script,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)["trials"]
    assert [trial["state"] for trial in trials] == ["COMPLETE"] * 4
    assert all(trial["breakdown"]["data_wait_s"] is not None for trial in trials)


def test_smaller_batches_under_accelerate(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    done = gputune(
        "trial", "--device", "cpu", "--study", tmp_path / "study", "--json", "-",
        "--set", "micro_batch_size=4", "--", sys.executable, SCRIPTS / "with_accelerate.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [trial] = json.loads(done.stdout)["trials"]
    assert trial["settings"]["accumulation_steps"] == 4
    assert trial["state"] == "COMPLETE"
