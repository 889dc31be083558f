"""Opening a study: names made absolute, commands checked, failures told as what they are, default spaces."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gputune_tui.domain.environment import Environment
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget, StudyIdentity, WorkloadRef
from gputune_tui.domain.trial import Failure, FailureReason
from gputune_tui.engine.commands import StudyConfig
from gputune_tui.engine.defaults import default_space
from gputune_tui.engine.node import ChosenDevice
from gputune_tui.engine.opening import Opened, absolute, check_interpreter, check_placeholders, inspection_error
from gputune_tui.errors import EnvironmentProblem, UsageError, WorkloadError
from gputune_tui.telemetry.host import HostLimits

ENVIRONMENT = Environment("host", "cpu", None, None, None, None, "2.6", "3.12", 2.0, None, None)
HOST = HostLimits(2.5, None, 8 << 30, 4 << 30, None)


def opened(workload: WorkloadRef, config: StudyConfig | None = None) -> Opened:
    config = replace(config or StudyConfig(workload), workload=workload)
    device = ChosenDevice("cpu", "cpu", None, None)
    return Opened(config, device, HOST, MemoryBudget(1 << 30), StudyIdentity(workload, "hash", 16, ENVIRONMENT), ())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lm", "lm"),
        ("package.module:Class", "package.module:Class"),
        ("train.py", "{cwd}/train.py"),
        ("./train.py:Net", "{cwd}/train.py:Net"),
        ("sub dir/ünï.py", "{cwd}/sub dir/ünï.py"),
        ("/abs/w.py:Net", "/abs/w.py:Net"),
        ("odd:name.py", "{cwd}/odd:name.py"),
        ("~/w.py", "{home}/w.py"),
    ],
)
def test_files_become_absolute_and_names_stay(
    name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    found = absolute(WorkloadRef(name, {"size": "tiny"}))
    assert found.name == expected.format(cwd=tmp_path, home="/home/someone")
    assert found.options == {"size": "tiny"}


def test_a_command_stays_as_it_was_typed() -> None:
    workload = WorkloadRef("python train.py", command=("python", "train.py"))
    assert absolute(workload) == workload


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (Failure(FailureReason.INVALID, "there is no file x.py", None, True), UsageError, "^there is no file x.py$"),
        (Failure(FailureReason.INVALID, "it cannot import torch"), EnvironmentProblem, "^it cannot import torch$"),
        (Failure(FailureReason.CRASH, "NameError: x (w.py:3)", None, True), WorkloadError, "workload w fails: NameErr"),
        (Failure(FailureReason.KILLED, "killed from outside"), EnvironmentProblem, "cannot read workload w: killed"),
        (Failure(FailureReason.HOST_OOM, "out of memory"), EnvironmentProblem, "cannot read workload w: out of"),
        (None, WorkloadError, "ended without an answer"),
    ],
)
def test_a_failed_inspection_is_told_as_what_it_is(failure: Failure | None, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        raise inspection_error("w", failure)
    assert type(caught.value) is kind


def test_an_interpreter_must_be_executable(tmp_path: Path) -> None:
    check_interpreter(None)
    check_interpreter(sys.executable)
    check_interpreter("sh")  # found on PATH
    plain = tmp_path / "python"
    with pytest.raises(UsageError, match="does not exist"):
        check_interpreter(str(plain))
    plain.write_text("")
    with pytest.raises(UsageError, match="is not executable"):
        check_interpreter(str(plain))
    with pytest.raises(UsageError, match="is not executable"):
        check_interpreter(str(tmp_path))


def test_a_command_must_hold_a_placeholder() -> None:
    check_placeholders(WorkloadRef("c", command=("train", "--bs={micro_batch_size}")))
    for command in (("train",), ("train", "{batch}"), ("train", "{}"), ("train", "micro_batch_size")):
        with pytest.raises(UsageError, match="holds no placeholder"):
            check_placeholders(WorkloadRef("c", command=command))


def test_samples_of_a_command_must_be_countable() -> None:
    accumulated = TrainSettings(micro_batch_size=4, accumulation_steps=4)
    blind = WorkloadRef("c", command=("train", "{micro_batch_size}"))
    with pytest.raises(UsageError, match=r"no placeholder \{accumulation_steps\}.* would not hold 16 samples"):
        opened(blind).check(accumulated)
    opened(blind).check(TrainSettings(micro_batch_size=16))
    opened(replace(blind, samples_per_step=16)).check(accumulated)
    opened(replace(blind, command=(*blind.command, "{accumulation_steps}"))).check(accumulated)
    opened(WorkloadRef("lm")).check(accumulated)


def test_the_baseline_holds_the_chosen_interpreter() -> None:
    workload = WorkloadRef("lm")
    assert opened(workload).baseline == {}
    chosen = StudyConfig(workload, python="/env/bin/python", baseline={"precision": "bf16"})
    assert opened(workload, chosen).baseline == {"precision": "bf16", "python": "/env/bin/python"}
    named = replace(chosen, baseline={"python": "/other"})
    assert opened(workload, named).baseline == {"python": "/other"}


def test_a_job_carries_what_the_trial_must_know() -> None:
    workload = WorkloadRef("lm", {"size": "tiny"})
    settings = TrainSettings(micro_batch_size=4, accumulation_steps=4)
    job = opened(workload, StudyConfig(workload, seed=7)).job(settings, 123, paced=True)
    assert (job.kind, job.device, job.visible_device) == ("trial", "cpu", None)
    assert (job.settings, job.global_batch_size, job.budget_bytes) == (settings, 16, 1 << 30)
    assert (job.fixed_overhead_bytes, job.device_free_bytes, job.seed, job.paced) == (123, None, 7, True)
    assert job.threads == 2


@pytest.mark.parametrize("batch", [1, 7, 16, 48])
@pytest.mark.parametrize("device_kind", ["cpu", "cuda"])
def test_the_default_space_always_has_cells(device_kind: str, batch: int) -> None:
    space = default_space(device_kind, batch, 2.0, is_command=False)
    cells = space.cells(batch, {}, device_kind)
    assert cells.dropped == 0
    assert cells.reference.micro_batch_size == batch
    assert {s.num_workers for s in cells.settings} == {0, 2}
    assert ("fp16" in space.values["precision"]) is (device_kind == "cuda")


def test_half_a_cpu_still_gives_one_worker() -> None:
    assert default_space("cpu", 4, 0.5, is_command=False).values["num_workers"] == (0, 1)
    assert "activation_checkpointing" not in default_space("cpu", 4, 0.5, is_command=True).values
