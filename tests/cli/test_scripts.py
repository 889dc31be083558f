"""Scripts that know nothing of this program, tuned, exported and run from the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.run_cli import gputune as run_cli

SCRIPTS = Path(__file__).parents[1] / "scripts"
QUICK = ("--device", "cpu", "--json", "-")


def script(name: str, *arguments: str) -> tuple[str, ...]:
    return ("--", sys.executable, str(SCRIPTS / name), *arguments)


def tuned(tmp_path: Path, space: str, *command: str, **options: str) -> tuple[dict[str, Any], str]:
    given = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    done = run_cli("tune", *QUICK, "--study", str(tmp_path / "study"), "--space", space, *given, *command)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_a_script_is_tuned_without_a_placeholder(tmp_path: Path) -> None:
    found, said = tuned(tmp_path, "micro_batch_size=32,8;num_workers=0,1", *script("mnist.py"))
    assert "the script trains Net" in said
    assert found["global_batch_size"] == 32
    assert [t["state"] for t in found["trials"]] == ["COMPLETE"] * 4
    by_settings = {(t["settings"]["micro_batch_size"], t["settings"]["num_workers"]): t for t in found["trials"]}
    split = by_settings[8, 1]
    assert split["settings"]["accumulation_steps"] == 4
    assert any("DataLoader at mnist.py" in flag for flag in split["flags"])
    assert any("accumulation_steps=4" in flag for flag in split["flags"])
    assert by_settings[32, 0]["flags"] == [] or not any("DataLoader" in flag for flag in by_settings[32, 0]["flags"])
    assert split["breakdown"]["data_wait_s"] is not None
    assert not split["disqualified"]


def test_what_cannot_be_set_is_refused_in_words(tmp_path: Path) -> None:
    done = run_cli(
        "tune", *QUICK, "--study", str(tmp_path), "--space", "micro_batch_size=8,4", *script("accumulating.py")
    )
    assert done.returncode == 2
    assert "accumulates by itself" in done.stderr
    assert "Traceback" not in done.stderr


def test_flags_stand_for_values(tmp_path: Path) -> None:
    found, _ = tuned(
        tmp_path,
        "precision=fp32,bf16",
        *script("imagenet.py", "{precision}"),
        flag="precision:bf16=--amp,fp32=",
    )
    assert {t["settings"]["precision"] for t in found["trials"] if t["state"] == "COMPLETE"} == {"fp32", "bf16"}
    assert not any("autocast" in flag for t in found["trials"] for flag in t["flags"])


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("exit-code", 4, "exit code 7"),
        ("never", 4, "never called enough optimizer steps"),
        ("crash", 4, "no such label: 11"),
    ],
)
def test_scripts_that_do_not_train_get_a_plain_sentence(tmp_path: Path, what: str, code: int, words: str) -> None:
    done = run_cli(
        "tune", *QUICK, "--study", str(tmp_path), "--space", "num_workers=0", *script("misbehaving.py", what)
    )
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_the_winner_is_exported_and_run(tmp_path: Path) -> None:
    study, config, saved = tmp_path / "study", tmp_path / "gputune.yaml", tmp_path / "weights.pt"
    command = script("mnist.py")
    done = run_cli("trial", *QUICK, "--study", str(study), "--set", "micro_batch_size=8", *command)
    assert done.returncode == 0, done.stderr
    assert run_cli("export", str(study), "--to", "yaml", "-o", str(config)).returncode == 0
    document = yaml.safe_load(config.read_text())
    assert document["workload"]["script"]["injected"] == ["micro_batch_size", "accumulation_steps"]
    job = script("mnist.py", "--epochs", "1", "--samples", "512", "--save-model", str(saved))
    done = run_cli("run", str(config), *job)
    assert done.returncode == 0, done.stderr
    assert "accumulation_steps=4" in done.stderr
    assert saved.exists()
    done = run_cli("run", str(config), *script("misbehaving.py", "exit-code"))
    assert done.returncode == 4
    assert "exit code 7" in done.stderr


def test_the_jobs_exit_code_is_ours(tmp_path: Path) -> None:
    study, config = tmp_path / "study", tmp_path / "gputune.yaml"
    failing = tmp_path / "train.py"
    failing.write_text((SCRIPTS / "mnist.py").read_text() + "    import sys\n    sys.exit(9)\n")
    command = ("--", sys.executable, str(failing), "--epochs", "100")
    done = run_cli("trial", *QUICK, "--study", str(study), "--set", "num_workers=1", *command)
    assert done.returncode == 0, done.stderr
    assert run_cli("export", str(study), "--to", "yaml", "-o", str(config)).returncode == 0
    done = run_cli("run", str(config), "--", sys.executable, str(failing), "--epochs", "1", "--samples", "64")
    assert done.returncode == 9, done.stderr
    assert "DataLoader at train.py" in done.stderr


def test_a_script_without_a_seed_is_no_other_training_each_time(tmp_path: Path) -> None:
    found, _ = tuned(tmp_path, "optimizer=default,loop", *script("sequential_checkpoints.py"))
    assert not any(trial["disqualified"] for trial in found["trials"]), found["trials"]
    assert found["best"] is not None
