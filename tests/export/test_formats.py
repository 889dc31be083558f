"""What each target's file holds: its own keys with the measured values, and in words what it cannot hold."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gputune_tui.domain.knobs import KnobValue
from gputune_tui.errors import UsageError
from gputune_tui.export.formats import FORMATS, NAMES
from gputune_tui.export.registry import RENDERERS, renderer_named
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered
from gputune_tui.export.yaml_config import read_config
from tests.export.make import BASE, CHOSEN, command_report, report, report_on

KEYED = ("accelerate", "transformers", "lightning", "deepspeed", "axolotl", "llama-factory")
"""Formats of a framework's own keys."""
AWAY: dict[str, KnobValue] = {
    "precision": "bf16",
    "micro_batch_size": 4,
    "accumulation_steps": 4,
    "activation_checkpointing": "every:2",
    "optimizer": "fused",
    "channels_last": True,
    "compile": "max-autotune",
    "num_workers": 3,
    "prefetch_factor": 4,
    "pin_memory": True,
    "persistent_workers": True,
}
"""A value of each knob that torch does not take by itself; on a GPU, where all of them can be measured."""


def rendered(name: str, found: ExportReport) -> Rendered:
    return renderer_named(name)(found)


def keys_of(name: str, found: ExportReport) -> dict[str, Any]:
    """The file's keys as a plain reader sees them."""
    text = rendered(name, found).text
    keys = json.loads(text) if name == "deepspeed" else yaml.safe_load(text)
    keys.pop("_comment", None)
    return dict(keys)


def test_the_formats_are_told_in_help_and_where_one_is_unknown() -> None:
    assert list(RENDERERS) == [found.name for found in FORMATS]
    with pytest.raises(UsageError, match=f"unknown export format 'toml'; formats are: {NAMES}"):
        renderer_named("toml")


TRAINING_ARGUMENTS: dict[str, Any] = {
    "use_cpu": True,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "bf16": True,
    "fp16": False,
    "dataloader_num_workers": 0,
    "dataloader_pin_memory": False,
    "dataloader_persistent_workers": False,
    "torch_compile": False,
}
EXPECTED: dict[str, dict[str, Any]] = {
    "transformers": {
        **TRAINING_ARGUMENTS,
        "gradient_checkpointing": False,
    },
    "llama-factory": {
        **TRAINING_ARGUMENTS,
        "disable_gradient_checkpointing": True,
    },
    "axolotl": {
        "micro_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "bf16": True,
        "fp16": False,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "gradient_checkpointing": False,
        "torch_compile": False,
    },
    "lightning": {
        "trainer": {"accelerator": "cpu", "devices": 1, "precision": "bf16-mixed", "accumulate_grad_batches": 2}
    },
    "accelerate": {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO",
        "mixed_precision": "bf16",
        "num_processes": 1,
        "num_machines": 1,
        "machine_rank": 0,
        "use_cpu": True,
    },
    "deepspeed": {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "train_batch_size": 16,
        "bf16": {"enabled": False},
        "fp16": {"enabled": False},
        "torch_autocast": {"enabled": True, "dtype": "bfloat16"},
    },
}


@pytest.mark.parametrize("name", KEYED)
def test_a_framework_gets_its_own_keys(name: str) -> None:
    assert keys_of(name, report()) == EXPECTED[name]


def test_words_that_yaml_takes_for_booleans_stay_words() -> None:
    keys = keys_of("accelerate", report_on("cuda:0"))
    assert (keys["distributed_type"], keys["mixed_precision"]) == ("NO", "no")


@pytest.mark.parametrize("name", KEYED)
@pytest.mark.parametrize("knob", AWAY)
def test_a_knob_is_a_key_or_told_to_be_none(name: str, knob: str) -> None:
    before = report_on("cuda:0", num_workers=2, prefetch_factor=2)
    changed = replace(before, settings=replace(before.settings, **{knob: AWAY[knob]}))  # type: ignore[arg-type]
    found = rendered(name, changed)
    remarks = [remark for remark in found.remarks if f"{knob}=" in remark]
    keys_differ = keys_of(name, before) != keys_of(name, changed)
    assert keys_differ or remarks, f"{knob} is dropped silently"
    lines = json.loads(found.text)["_comment"] if name == "deepspeed" else found.text.splitlines()
    for remark in found.remarks:
        assert any(line.removeprefix("# ") == remark for line in lines), "on stderr and as a comment"
    if remarks and not keys_differ:
        ways = ("in code: ", "optim: adamw_torch_fused", "optimizer: adamw_torch_fused", "set ACCEL")
        assert any(way in remarks[0] for way in ways)


def test_what_has_no_key_is_told_with_the_code_that_does_it() -> None:
    found = report_on(
        "cuda:0",
        num_workers=6,
        prefetch_factor=4,
        pin_memory=True,
        persistent_workers=True,
        accumulation_steps=4,
        micro_batch_size=4,
        activation_checkpointing="selective",
        channels_last=True,
        precision="tf32",
        optimizer="foreach",
    )
    remarks = rendered("accelerate", found).remarks
    assert remarks[0].startswith(
        "accumulation_steps=4: set ACCELERATE_GRADIENT_ACCUMULATION_STEPS=4 in the environment of the launch"
    )
    assert remarks[1].endswith(
        "in code: DataLoader(batch_size=4, num_workers=6, prefetch_factor=4, pin_memory=True, persistent_workers=True)"
    )
    told = " ".join(remarks)
    for words in (
        'precision=tf32; in code: torch.set_float32_matmul_precision("high")',
        "activation_checkpointing=selective; in code: torch.utils.checkpoint.checkpoint(",
        "channels_last=true; in code: model.to(memory_format=torch.channels_last)",
        "optimizer=foreach; in code: the optimizer with foreach=True, fused=False",
    ):
        assert words in told


def test_what_a_framework_does_by_itself_and_was_not_measured_is_told() -> None:
    told = {name: " ".join(rendered(name, report_on("cuda:0")).remarks) for name in KEYED}
    for name in ("accelerate", "lightning", "deepspeed"):
        assert "precision=fp32; in code: torch.backends.cudnn.allow_tf32 = False" in told[name]
    for name in ("transformers", "llama-factory"):
        assert "optimizer=default: write `optim: adamw_torch` where" in told[name]
    assert "optimizer=default: write `optimizer: adamw_torch` where" in told["axolotl"]
    mixed = report_on("cuda:0", precision="bf16")
    assert "axolotl loads the weights themselves in bf16" in rendered("axolotl", mixed).remarks[0]
    emulated = report_on("cpu", precision="fp16")
    assert "Lightning takes bf16 in its place" in rendered("lightning", emulated).remarks[0]
    assert "precision=fp16; in code: torch.autocast" in " ".join(rendered("accelerate", emulated).remarks)


def test_what_a_cpu_trial_had_in_its_environment_is_told(tmp_path: Path) -> None:
    found = replace(report(), environment=replace(report().environment, effective_cpus=2.5))
    assert rendered("accelerate", found).remarks[0].startswith("2 threads: set OMP_NUM_THREADS=2")
    for name in ("env", "torchrun"):
        assert "OMP_NUM_THREADS=2\n" in rendered(name, found).text
        assert "CUDA_VISIBLE_DEVICES=\n" in rendered(name, found).text
    assert "torch.set_num_threads(2)" in rendered("python", found).text
    other = replace(found, settings=replace(found.settings, python="/opt/env/bin/python"))
    assert "in code: run it by /opt/env/bin/python" in " ".join(rendered("lightning", other).remarks)


def test_llama_factory_is_kept_from_recomputing_what_was_not_measured_so() -> None:
    keys = keys_of("llama-factory", report_on("cuda:0", activation_checkpointing="every:2"))
    assert keys["disable_gradient_checkpointing"] is True
    full = keys_of("llama-factory", report_on("cuda:0", activation_checkpointing="full"))
    assert full["disable_gradient_checkpointing"] is False
    assert full["use_reentrant_gc"] is False
    assert (
        keys_of("transformers", report_on("cuda:0", activation_checkpointing="full"))["gradient_checkpointing"] is True
    )


def test_a_prefetch_factor_without_workers_is_left_out() -> None:
    for name in ("transformers", "axolotl", "llama-factory"):
        assert "dataloader_prefetch_factor" not in keys_of(name, report())
        assert keys_of(name, report_on("cpu", num_workers=2, prefetch_factor=4))["dataloader_prefetch_factor"] == 4


def test_of_a_command_only_the_knobs_in_its_template_were_measured() -> None:
    found = command_report("python", "train.py", "--bs={micro_batch_size}", "{other}", precision="bf16")
    assert keys_of("transformers", found) == {"use_cpu": True, "per_device_train_batch_size": 16}
    assert keys_of("deepspeed", found) == {"train_micro_batch_size_per_gpu": 16}
    assert keys_of("lightning", found) == {"trainer": {"accelerator": "cpu", "devices": 1}}
    assert rendered("env", found).text.count("=16\n") == 1
    assert "PRECISION" not in rendered("env", found).text
    assert "precision" not in " ".join(rendered("accelerate", found).remarks)


def test_json_is_the_same_document(tmp_path: Path) -> None:
    path = tmp_path / "gputune.json"
    path.write_text(rendered("json", report()).text, encoding="utf-8")
    assert read_config(path) == report()
    assert json.loads(path.read_text()) == yaml.safe_load(rendered("yaml", report()).text)


def sourced(text: str, folder: Path) -> dict[str, str]:
    """The variables that a shell sets from the file."""
    (folder / "file.env").write_text(text)
    script = 'set -a; . ./file.env; set +a; env -0 | grep -z -e "^GPUTUNE_" -e "^ACCELERATE_"'
    done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in done.stdout.split("\0") if line)


def test_env_is_read_by_a_shell(tmp_path: Path) -> None:
    found = sourced(rendered("env", report_on("cpu", activation_checkpointing="every:2")).text, tmp_path)
    assert found["GPUTUNE_MICRO_BATCH_SIZE"] == "16"
    assert found["GPUTUNE_ACTIVATION_CHECKPOINTING"] == "every:2"
    assert found["GPUTUNE_PREFETCH_FACTOR"] == ""
    assert found["ACCELERATE_MIXED_PRECISION"] == "no"
    assert found["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "1"


def started(text: str, folder: Path, *arguments: str) -> list[str]:
    """What the script starts, as words, and the micro-batch that it finds in the environment."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("torchrun", "bash", "python", "python3.11"):
        tool = tools / name
        tool.write_text(
            '#!/bin/sh\nfor word in "${0##*/}" "$@"; do echo "$word"; done; echo "$GPUTUNE_MICRO_BATCH_SIZE"\n'
        )
        tool.chmod(0o755)
    (folder / "start.sh").write_text(text)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", "start.sh", *arguments], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


OPTIONS = ["--standalone", "--nproc-per-node=1"]
LAUNCH = ["-m", "torch.distributed.run", *OPTIONS]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("python", "train.py", "--bs", "{micro_batch_size}"), ["python", *LAUNCH, "train.py", "--bs", "4"]),
        (("python3.11", "-u", "train.py", "a b"), ["python3.11", *LAUNCH, "train.py", "a b"]),
        (("python", "-m", "pkg.train", "{num_workers}"), ["python", *LAUNCH, "-m", "pkg.train", "0"]),
        (("torchrun", "--nproc-per-node", "2", "t.py"), ["torchrun", "--nproc-per-node", "2", "t.py"]),
        (("bash", "train.sh", "{micro_batch_size}"), ["bash", "train.sh", "4"]),
        (("python", "-O", "t.py"), ["python", "-O", "t.py"]),
    ],
)
def test_torchrun_starts_the_measured_command(tmp_path: Path, command: tuple[str, ...], words: list[str]) -> None:
    found = rendered("torchrun", command_report(*command, "{precision}", micro_batch_size=4))
    *said, micro = started(found.text, tmp_path)
    assert said == [*words, "fp32"]
    assert micro == ("4" if "{micro_batch_size}" in command else "")
    stands = command[0] == "bash" or "-O" in command
    assert any("stands as it is" in remark for remark in found.remarks) == stands
    assert "ACCELERATE" not in found.text, "it was measured without"


def test_torchrun_starts_whatever_script_it_is_given(tmp_path: Path) -> None:
    found = rendered("torchrun", report())
    assert started(found.text, tmp_path, "train.py", "--lr", "1 2") == [
        "torchrun",
        *OPTIONS,
        "train.py",
        "--lr",
        "1 2",
        "8",
    ]
    assert "torchrun has no key for micro_batch_size=8; in code: DataLoader(batch_size=8)" in found.remarks


def test_a_command_has_no_python_loop() -> None:
    with pytest.raises(UsageError, match="a command is a training script already; --to torchrun, env or yaml"):
        rendered("python", command_report("python", "train.py", "{precision}"))


def test_the_report_holds_the_ranking() -> None:
    text = rendered("markdown", report()).text
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert "| precision | bf16 |" in lines
    [chosen] = [line for line in lines if "**chosen**" in line]
    assert chosen.startswith("| 1 | ")
    assert "cached data" in chosen
    assert any("(baseline)" in line for line in lines)
    assert report().command in text


HOSTILE = st.text(st.characters(codec="utf-8"), max_size=40)


@given(name=HOSTILE, flag=HOSTILE, option=HOSTILE)
@settings(max_examples=60, deadline=None)
def test_whatever_stands_in_names_and_flags_stays_a_comment_or_a_value(name: str, flag: str, option: str) -> None:
    base = report()
    workload = replace(base.workload, name=f"/wl{name}.py", options={"text": option})
    found = replace(base, workload=workload, flags=(flag,))
    for target in KEYED:
        assert keys_of(target, found) == keys_of(target, base)
    ast.parse(rendered("python", found).text)
    for target in ("env", "torchrun"):
        lines = rendered(target, found).text.splitlines()
        assert all(
            line.startswith(("#", "GPUTUNE_", "ACCELERATE_", "OMP_", "MKL_", "CUDA_", "export ", "exec "))
            for line in lines
        )


def test_chosen_is_what_the_other_tests_take_it_for() -> None:
    assert (CHOSEN.precision, CHOSEN.micro_batch_size, CHOSEN.accumulation_steps) == ("bf16", 8, 2)
    assert BASE.micro_batch_size == 16
