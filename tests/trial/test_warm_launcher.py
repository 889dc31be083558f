"""The warm host: when a trial is forked from it, and what happens when it dies, refuses or does not answer."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputune_tui.domain.job import Job
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import FailureReason, TrialState
from gputune_tui.trial import warm_host
from gputune_tui.trial.keeper import descendants
from gputune_tui.trial.supervisor import Limits, TrialRun, become_subreaper
from gputune_tui.trial.warm_launcher import WarmLauncher, may_be_forked

from .conftest import body_job
from .test_supervisor import DEADLINE_S, is_alive, poll_until, run_out, wait_gone

MEASURED = "send('phase', name='measure'); send('done')"


@pytest.fixture
def environment() -> dict[str, str]:
    """What a launcher's trials get; a test may change it before the first launch."""
    return dict(os.environ)


@pytest.fixture
def own(environment: dict[str, str]) -> Iterator[WarmLauncher]:
    """A launcher of this test alone, whose host may be ended."""
    launcher = WarmLauncher(environment)
    yield launcher
    launcher.close()


def wait_ready(launcher: WarmLauncher, job: Job) -> None:
    deadline = time.monotonic() + 60
    while not launcher.is_ready(job, 0.1):
        assert time.monotonic() < deadline, "the host did not become ready"


def host_pid(launcher: WarmLauncher) -> int:
    pid = launcher.host_pid
    assert pid is not None
    return pid


def was_forked(run: TrialRun) -> bool:
    return isinstance(run._process.keeper, warm_host.ForkedKeeper)


def blank(python: str | None = None, command: tuple[str, ...] = (), kind: str = "trial") -> Job:
    return Job(kind, WorkloadRef("x", command=command), settings=TrainSettings(python=python))


def test_another_interpreter_and_the_users_own_command_start_afresh() -> None:
    assert may_be_forked(blank())
    assert may_be_forked(blank(kind="inspect"))
    assert not may_be_forked(blank(python="/env/bin/python"))
    assert not may_be_forked(blank(python=sys.executable))
    assert not may_be_forked(blank(command=("train",)))
    assert not may_be_forked(blank(command=("train",), kind="inspect"))


def test_no_host_is_started_for_what_is_not_forked() -> None:
    launcher = WarmLauncher()
    assert launcher.is_ready(blank(python="/env/bin/python"), 0.0)
    assert launcher.host_pid is None
    launcher.close()
    launcher.close()


@pytest.mark.slow
def test_a_killed_host_costs_no_running_trial_and_is_replaced(own: WarmLauncher, tmp_path: Path) -> None:
    become_subreaper()
    go, up = tmp_path / "go", tmp_path / "up"
    code = f"""
        open({str(up)!r}, "w").write(str(os.getpid()))
        while not os.path.exists({str(go)!r}):
            time.sleep(0.01)
        send("done")
    """
    job = body_job(tmp_path / "body.py", code, forked=True)
    run = TrialRun(own.launch(job, tmp_path / "one"), Limits())
    assert was_forked(run)
    poll_until(run, up)
    first = host_pid(own)
    os.kill(first, signal.SIGKILL)
    wait_gone(first)
    go.touch()
    assert run_out(run).state is TrialState.COMPLETE
    # The keeper has become this process's own child, and is no zombie of it.
    assert run._process.keeper.pid not in descendants(os.getpid())
    assert not Path(f"/proc/{run._process.keeper.pid}").exists()
    again = TrialRun(own.launch(job, tmp_path / "two"), Limits())
    assert was_forked(again)
    assert run_out(again).state is TrialState.COMPLETE
    assert again.seen.notes == []
    assert host_pid(own) != first


@pytest.mark.slow
def test_a_host_that_does_not_answer_is_not_waited_for(
    own: WarmLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = body_job(tmp_path / "body.py", MEASURED, forked=True)
    wait_ready(own, job)
    stopped = host_pid(own)
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr(warm_host, "ANSWER_S", 0.3)
    run = TrialRun(own.launch(job, tmp_path / "trial"), Limits())
    assert not was_forked(run)
    assert not is_alive(stopped)
    assert run_out(run).state is TrialState.COMPLETE
    assert run.seen.launch().notes == (
        "started as a fresh process, since the one that trials are forked from did not answer for 0 s",
    )


@pytest.mark.slow
def test_a_host_with_a_second_thread_is_refused_and_said(
    own: WarmLauncher, environment: dict[str, str], tmp_path: Path
) -> None:
    source = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    (tmp_path / "sitecustomize.py").write_text(source)
    environment["PYTHONPATH"] = str(tmp_path)
    job = body_job(tmp_path / "body.py", MEASURED, forked=True)
    for number in range(2):
        run = TrialRun(own.launch(job, tmp_path / f"trial{number}"), Limits())
        assert not was_forked(run)
        assert run_out(run).state is TrialState.COMPLETE
        assert "has 2 threads" in run.seen.notes[0]
    assert own.host_pid is None


@pytest.mark.slow
def test_a_torch_that_cannot_be_imported_is_the_trials_own_failure(
    own: WarmLauncher, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.1: no such file')")
    environment["PYTHONPATH"] = str(tmp_path)
    job = body_job(tmp_path / "body.py", MEASURED, forked=True)
    wait_ready(own, job)
    run = run_out(TrialRun(own.launch(job, tmp_path / "trial"), Limits()))
    assert run.failure is not None
    assert run.failure.reason is FailureReason.INVALID
    assert "cannot import torch: libcudart.so.1: no such file" in run.failure.message
    assert "ended (exit code 1: ImportError: libcudart.so.1: no such file)" in run.seen.notes[0]


@pytest.mark.slow
def test_another_environment_or_folder_gets_another_host(
    own: WarmLauncher, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = [0]
    told = tmp_path / "told"
    job = body_job(
        tmp_path / "body.py",
        f"open({str(told)!r}, 'w').write(os.environ.get('OMP_WAIT_POLICY', '') + ' ' + os.getcwd()); send('done')",
        forked=True,
    )

    def forked_from_a_new_host() -> str:
        run = TrialRun(own.launch(job, tmp_path / f"trial{len(pids)}"), Limits())
        assert was_forked(run)
        assert run_out(run).state is TrialState.COMPLETE
        pids.append(host_pid(own))
        return told.read_text()

    here = os.getcwd()
    assert forked_from_a_new_host() == f" {here}"
    environment["OMP_WAIT_POLICY"] = "passive"
    assert forked_from_a_new_host() == f"passive {here}"
    monkeypatch.chdir(tmp_path)
    assert forked_from_a_new_host() == f"passive {tmp_path}"
    assert len(set(pids)) == 4


@pytest.mark.slow
def test_a_workload_is_inspected_while_the_rest_is_imported(own: WarmLauncher, tmp_path: Path) -> None:
    file = tmp_path / "wl.py"
    file.write_text(
        "class Workload:\n    def build_model(self): ...\n    def build_dataset(self): ...\n    def loss(self): ...\n"
    )
    job = Job("inspect", WorkloadRef(str(file)), settings=TrainSettings(), threads=1)
    wait_ready(own, job)
    run = TrialRun(own.launch(job, tmp_path / "trial"), Limits())
    assert was_forked(run)
    run_out(run)
    assert run.seen.inspected is not None, run.failure
    assert run.seen.inspected.class_name == "Workload"


@pytest.mark.slow
def test_files_are_read_again_for_every_trial(warm: WarmLauncher, tmp_path: Path) -> None:
    told = tmp_path / "told"
    (tmp_path / "body.py").write_text("")
    for number in range(3):
        # The file changes within a second and keeps its size, its helper does not.
        job = body_job(
            tmp_path / "body.py",
            f"from helper import VALUE; open({str(told)!r}, 'w').write('{number} ' + VALUE); send('done')",
            forked=True,
        )
        (tmp_path / "helper.py").write_text(f"VALUE = {'x' * number!r}")
        assert run_out(TrialRun(warm.launch(job, tmp_path / "trial"), Limits())).state is TrialState.COMPLETE
        assert told.read_text() == f"{number} {'x' * number}"


@pytest.mark.slow
def test_what_a_killed_keeper_leaves_is_found_though_it_was_only_forked(warm: WarmLauncher, tmp_path: Path) -> None:
    become_subreaper()
    pids = tmp_path / "pids"
    code = f"""
        if os.fork() == 0:
            os.setsid()
            open({str(pids)!r}, "w").write(str(os.getpid()))
            time.sleep(600)
        time.sleep(600)
    """
    run = TrialRun(warm.launch(body_job(tmp_path / "body.py", code, forked=True), tmp_path / "trial"), Limits())
    apart = poll_until(run, pids)
    os.kill(run._process.keeper.pid, signal.SIGKILL)
    run_out(run)
    assert run.failure is not None
    assert run.failure.reason is FailureReason.KILLED
    wait_gone(apart)
    assert warm.host_pid is not None
    assert is_alive(warm.host_pid)


@pytest.mark.slow
def test_the_host_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    import subprocess

    parent = textwrap.dedent("""
        import time
        from pathlib import Path
        from gputune_tui.trial.warm_launcher import WarmLauncher
        from tests.trial.test_warm_launcher import blank
        launcher = WarmLauncher()
        launcher.is_ready(blank(), 0.0)
        print(launcher.host_pid, flush=True)
        time.sleep(600)
    """)
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=root, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert is_alive(pid)
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + DEADLINE_S  # it is in the middle of its imports
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
