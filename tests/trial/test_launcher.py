"""Command lines and environments of trials, and what a launch says when it cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputune_tui.domain.job import CONTROL_VARIABLE, EVENTS_VARIABLE, JOB_VARIABLE, Job
from gputune_tui.domain.knobs import KNOB_BY_NAME
from gputune_tui.domain.plain import from_plain
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.template import placeholders
from gputune_tui.errors import EnvironmentProblem, StoreWriteError
from gputune_tui.trial import launcher
from gputune_tui.trial.launcher import (
    BOOTSTRAP,
    KEEPER,
    SCRIPT_HOOKS,
    LocalLauncher,
    Pipes,
    keeper_command,
    trial_command,
    trial_environment,
)
from gputune_tui.trial.supervisor import Limits, TrialRun

SETTINGS = TrainSettings(precision="bf16", micro_batch_size=4, accumulation_steps=2, num_workers=2, pin_memory=True)
EMPTY: dict[str, str] = {}


def command_job(*words: str, settings: TrainSettings = SETTINGS, global_batch_size: int | None = 8) -> Job:
    workload = WorkloadRef(" ".join(words), command=words)
    return Job("trial", workload, settings=settings, global_batch_size=global_batch_size)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes(paced=True)
    yield made
    made.close()


@pytest.fixture
def unpaced() -> Iterator[Pipes]:
    made = Pipes(paced=False)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("{micro_batch_size}", "4"),
        ("--bs={micro_batch_size}x{accumulation_steps}", "--bs=4x2"),
        ("{global_batch_size}", "8"),
        ("{precision}", "bf16"),
        ("{pin_memory}", "true"),
        ("{persistent_workers}", "false"),
        ("{prefetch_factor}", "null"),
        ("{python}", "null"),
        ("{unknown}", "{unknown}"),
        ("{}", "{}"),
        ("{0}", "{0}"),
        ("{{micro_batch_size}}", "{4}"),
        ('{"lr": 1, "bs": {micro_batch_size}}', '{"lr": 1, "bs": 4}'),
        ("$HOME; rm {a}", "$HOME; rm {a}"),
        ("{micro_batch_size", "{micro_batch_size"),
        ("", ""),
    ],
)
def test_placeholders_are_filled_and_other_braces_stay(word: str, expected: str) -> None:
    assert trial_command(command_job("train", word), Path("d")) == ["train", expected]


def test_values_are_not_filled_again() -> None:
    odd = "/env/{precision}{world_size}\\1/python"
    job = command_job("{python}", settings=TrainSettings(python=odd))
    assert trial_command(job, Path("d")) == [odd]


def test_without_a_global_batch_its_placeholder_stays() -> None:
    assert trial_command(command_job("{global_batch_size}", global_batch_size=None), Path("d")) == [
        "{global_batch_size}"
    ]


def test_which_placeholders_a_command_holds() -> None:
    names = tuple(KNOB_BY_NAME)
    assert placeholders(("a", "--x={precision}", "{num_workers}{precision}"), names) == {"precision", "num_workers"}
    assert placeholders(("precision", "{ precision }", "{Precision}"), names) == set()
    assert placeholders((), names) == set()


def test_a_class_runs_our_entry_point_under_the_chosen_interpreter() -> None:
    job = Job("trial", WorkloadRef("lm"), settings=SETTINGS)
    assert trial_command(job, Path("d")) == [sys.executable, str(BOOTSTRAP)]
    other = Job("trial", WorkloadRef("lm"), settings=TrainSettings(python="/env/bin/python"))
    assert trial_command(other, Path("d")) == ["/env/bin/python", str(BOOTSTRAP)]
    assert BOOTSTRAP.is_file()
    assert KEEPER.is_file()
    assert (SCRIPT_HOOKS / "sitecustomize.py").is_file()


def test_an_inspection_of_a_command_is_ours_to_run() -> None:
    workload = WorkloadRef("train", command=("train", "{precision}"))
    assert trial_command(Job("inspect", workload), Path("d")) == [sys.executable, str(BOOTSTRAP)]


def test_the_keeper_starts_isolated_and_the_command_follows_two_dashes(pipes: Pipes, tmp_path: Path) -> None:
    words = keeper_command(pipes, tmp_path / "log.txt", ["train", "--", "-x"])
    assert words[:4] == [sys.executable, "-I", "-S", str(KEEPER)]
    assert words[4:8] == [
        str(pipes.orders[0]),
        str(pipes.status[1]),
        str(tmp_path / "log.txt"),
        str(launcher.LOG_CAP_BYTES),
    ]
    assert words[8:] == ["--", "train", "--", "-x"]


def test_the_trial_learns_where_its_orders_are(pipes: Pipes) -> None:
    env = trial_environment(Job("trial", WorkloadRef("lm"), settings=SETTINGS), Path("job.json"), pipes, {"A": "b"})
    assert env["A"] == "b"
    assert env[JOB_VARIABLE] == str(Path("job.json").absolute())
    assert env[EVENTS_VARIABLE] == str(pipes.events[1])
    assert pipes.control is not None
    assert env[CONTROL_VARIABLE] == str(pipes.control[0])


def test_an_unpaced_trial_inherits_no_control(unpaced: Pipes) -> None:
    job = Job("trial", WorkloadRef("lm"), settings=SETTINGS)
    assert CONTROL_VARIABLE not in trial_environment(job, Path("j"), unpaced, {CONTROL_VARIABLE: "9"})


@pytest.mark.parametrize(
    ("device", "visible", "users", "expected"),
    [
        ("cpu", None, "0,1", ""),
        ("cpu", None, None, ""),
        ("cuda:0", "GPU-abc", "0,1", "GPU-abc"),
        ("cuda:0", "GPU-abc", None, "GPU-abc"),
        ("cuda:0", None, "0,1", "0,1"),
    ],
)
def test_a_trial_sees_its_own_device_alone(
    unpaced: Pipes, device: str, visible: str | None, users: str | None, expected: str
) -> None:
    base = {} if users is None else {"CUDA_VISIBLE_DEVICES": users}
    job = Job("trial", WorkloadRef("lm"), device=device, visible_device=visible, settings=SETTINGS)
    env = trial_environment(job, Path("j"), unpaced, base)
    assert env["CUDA_VISIBLE_DEVICES"] == expected
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_threads_are_set_only_where_they_are_known(unpaced: Pipes) -> None:
    job = Job("trial", WorkloadRef("lm"), settings=SETTINGS, threads=3)
    env = trial_environment(job, Path("j"), unpaced, {"OMP_NUM_THREADS": "64"})
    assert (env["OMP_NUM_THREADS"], env["MKL_NUM_THREADS"]) == ("3", "3")
    without = Job("trial", WorkloadRef("lm"), settings=SETTINGS)
    assert trial_environment(without, Path("j"), unpaced, {"OMP_NUM_THREADS": "64"})["OMP_NUM_THREADS"] == "64"


def test_a_command_finds_our_hooks_first_and_its_own_path_after(unpaced: Pipes) -> None:
    job = command_job("train")
    assert trial_environment(job, Path("j"), unpaced, EMPTY)["PYTHONPATH"] == str(SCRIPT_HOOKS)
    env = trial_environment(job, Path("j"), unpaced, {"PYTHONPATH": "/a:/b"})
    assert env["PYTHONPATH"] == os.pathsep.join([str(SCRIPT_HOOKS), "/a:/b"])
    ours = Job("trial", WorkloadRef("lm"), settings=SETTINGS)
    assert "PYTHONPATH" not in trial_environment(ours, Path("j"), unpaced, EMPTY)


def test_the_base_environment_is_left_alone(unpaced: Pipes) -> None:
    base = {"CUDA_VISIBLE_DEVICES": "0", "PYTHONPATH": "/a"}
    trial_environment(command_job("train"), Path("j"), unpaced, base)
    assert base == {"CUDA_VISIBLE_DEVICES": "0", "PYTHONPATH": "/a"}


def test_pipes_close_every_end_and_may_be_closed_twice() -> None:
    pipes = Pipes(paced=True)
    assert pipes.control is not None
    ends = [*pipes.events, *pipes.status, *pipes.orders, *pipes.control]
    assert set(pipes.childs_ends()) < set(ends)
    pipes.close()
    for fd in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    pipes.close()


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_an_unwritable_place_is_told_with_what_to_do_and_leaks_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = open_descriptors()
    with pytest.raises(
        StoreWriteError, match=r"cannot write .*job.json: .*; free some space or choose another --study"
    ):
        LocalLauncher().launch(command_job("true"), tmp_path / "file" / "trial")
    assert open_descriptors() == before


def test_a_process_that_cannot_start_is_told_with_the_limits_to_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_args: object, **_options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    before = open_descriptors()
    monkeypatch.setattr(subprocess, "Popen", no_more)
    with pytest.raises(EnvironmentProblem, match=r"cannot start a trial process: Resource temporarily .*ulimit -u"):
        LocalLauncher().launch(command_job("true"), tmp_path)
    assert open_descriptors() == before


def test_a_launch_leaves_its_settings_in_a_file_and_closes_what_it_opened(tmp_path: Path) -> None:
    job = command_job(sys.executable, "-S", "-c", "print({micro_batch_size})")
    before = open_descriptors()
    run = TrialRun(LocalLauncher().launch(job, tmp_path / "deep" / "trial"), Limits(), is_command=True)
    run.close()
    assert from_plain(Job, json.loads((tmp_path / "deep" / "trial" / "job.json").read_text())) == job
    assert open_descriptors() == before
