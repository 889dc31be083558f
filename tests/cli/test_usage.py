"""What is refused, in one sentence and with the right exit code, before any trial is launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from .run_cli import gputune


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["frobnicate"], 2, "no command"),
        (["tune"], 2, "no workload given"),
        (["tune", "lm", "--space", "precison=fp32"], 2, "did you mean 'precision'"),
        (["tune", "lm", "--space", "precision=fp64"], 2, "fp32, tf32, bf16, fp16"),
        (["tune", "lm", "--space", "precision"], 2, "no values"),
        (["tune", "lm", "--budget", "lots", "--device", "cpu"], 2, "not a size"),
        (["tune", "lm", "--budget", "0%", "--device", "cpu"], 2, "between 0 and 100"),
        (["tune", "lm", "--device", "tpu"], 2, "not a device"),
        (["tune", "lm", "--global-batch", "0"], 2, "--global-batch"),
        (["tune", "lm", "--python", "/no/such/python"], 2, "does not exist"),
        (["tune", "lm", "-D", "size"], 2, "key=value"),
        (["tune", "lm", "--max-time", "soon"], 2, "not a duration"),
        (["tune", "lm", "--again", "three"], 2, "--again disturbed"),
        (["tune", "lm", "--stall-timeout", "-3"], 2, "not a duration"),
        (["tune", "--device", "cpu", "--", "python", "train.py"], 4, "can't open file"),
        (["tune", "--device", "cpu", "--", "no-such-command"], 4, "could not be run"),
        (["tune", "lm", "--flag", "precision:bf16=--amp"], 2, "--flag is for commands"),
        (["tune", "--flag", "precision:bf16", "--", "train"], 2, "VALUE=WORDS"),
        (["run", "gputune.yaml"], 2, "nothing follows --"),
        (["run", "gputune.yaml", "--", "python", "train.py"], 2, "does not exist"),
        (
            ["tune", "--global-batch", "8", "--device", "cpu", "--", "python", "t{micro_batch_size}.py"],
            2,
            "accumulation_steps",
        ),
        (["ab", "lm", "--a", "precision=fp32", "--b", "precision"], 2, "KNOB=VALUE"),
        (["ab", "lm", "--a", "precision=fp32", "--b", "precision=bf16", "--margin", "-1"], 2, "not a fraction"),
        (["export", "/no/such/study", "--to", "yaml"], 2, "no study"),
        (["export", "/no/such/study", "--to", "toml"], 2, "formats are"),
        (["verify", "/no/such/file.yaml"], 2, "does not exist"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    done = gputune(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stdout == ""


def test_help_names_the_exit_codes() -> None:
    done = gputune("--help")
    assert done.returncode == 0
    assert "6 verify disagrees" in " ".join(done.stdout.split())


def test_workloads_lists_lm() -> None:
    done = gputune("workloads")
    assert done.returncode == 0
    assert any(line.startswith("lm ") for line in done.stdout.splitlines())


def test_export_refuses_a_directory_that_is_no_study(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = gputune("export", tmp_path, "--to", "yaml")
    assert done.returncode == 2
    assert "not a study" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nosuch"], 2, "gputune-tui workloads lists"),
        (["./missing.py"], 2, "there is no file"),
        (["lm", "-D", "siz=tiny"], 2, "it takes size"),
        (["lm", "-D", "size=huge"], 2, "tiny, small, base"),
        (["lm", "-D", "size=tiny", "--global-batch", "16", "--space", "micro_batch_size=3"], 2, "divisors are"),
        (
            ["lm", "-D", "size=tiny", "--global-batch", "16", "--space", "micro_batch_size=4;accumulation_steps=2"],
            2,
            "micro_batch_size x accumulation_steps",
        ),
        (["lm", "--device", "cuda"], 5, "--device cpu"),
    ],
)
def test_what_only_the_workload_can_tell(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    given = arguments if "--device" in arguments else [*arguments, "--device", "cpu"]
    done = gputune("tune", *given, "--study", tmp_path / "study")
    if "cuda" in arguments and done.returncode != 5:
        pytest.skip("this machine has a CUDA device")
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "my model.py").write_text("import torch\ndef broken(:\n")
    done = gputune("tune", "./my model.py", "--device", "cpu", "--study", tmp_path / "study", cwd=tmp_path)
    assert done.returncode == 4
    assert "SyntaxError" in done.stderr
    assert "my model.py:2" in done.stderr
