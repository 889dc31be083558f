"""One trial seen from outside, with real processes: how each way of ending is told, and that nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputune_tui.domain.conditions import Conditions, Pressure
from gputune_tui.domain.protocol import Finish, Phase, RunBlock
from gputune_tui.domain.trial import FailureReason, TrialState
from gputune_tui.trial.keeper import descendants
from gputune_tui.trial.launcher import LOG_CAP_BYTES, LocalLauncher
from gputune_tui.trial.outcome import StopCause
from gputune_tui.trial.supervisor import Limits, TrialRun

from .conftest import StartTrial, body_job

DEADLINE_S = 30.0


def run_out(run: TrialRun) -> TrialRun:
    deadline = time.monotonic() + DEADLINE_S
    while not run.finished:
        run.poll(0.05)
        assert time.monotonic() < deadline, "the trial did not end"
    return run


def poll_until(run: TrialRun, path: Path) -> int:
    """Poll until a file with a pid appears, and return it."""
    deadline = time.monotonic() + DEADLINE_S
    while not (path.exists() and path.read_text().strip()):
        run.poll(0.05)
        assert time.monotonic() < deadline, f"{path} did not appear"
    return int(path.read_text())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still alive"
        time.sleep(0.02)


def test_done_is_complete_and_events_add_up(start_trial: StartTrial) -> None:
    run = run_out(
        start_trial("""
        send("phase", name="measure")
        for _ in range(3):
            send("block", block={"samples": 32, "steps": 2, "elapsed_s": 0.5}, step_times_s=[0.25, 0.25], planned=3)
        send("done")
        """)
    )
    assert run.state is TrialState.COMPLETE
    launch = run.seen.launch()
    assert [block.samples_per_s for block in launch.blocks] == [64.0] * 3
    assert launch.step_times_s == (0.25,) * 6


def test_exit_without_done_is_ended_early(start_trial: StartTrial) -> None:
    run = run_out(start_trial("send('phase', name='warm_up')"))
    assert run.failure is not None
    assert run.failure.reason is FailureReason.ENDED_EARLY
    assert "warming up" in run.failure.message


def test_exit_code_and_last_line_are_shown(start_trial: StartTrial) -> None:
    run = run_out(start_trial("print('first'); print('no such file: x.txt\\x1b[2J'); sys.exit(3)"))
    assert run.failure is not None
    assert run.failure.reason is FailureReason.CRASH
    assert "exit code 3" in run.failure.message
    assert "no such file: x.txt" in run.failure.message
    assert "\x1b" not in run.failure.message


def test_words_in_the_output_decide_nothing(start_trial: StartTrial) -> None:
    run = run_out(start_trial("print('CUDA out of memory. error: bus error'); send('done')"))
    assert run.state is TrialState.COMPLETE


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGBUS, FailureReason.SHM),
        (signal.SIGSEGV, FailureReason.CRASH),
        (signal.SIGKILL, FailureReason.KILLED),
    ],
)
def test_signals_are_typed(start_trial: StartTrial, number: signal.Signals, reason: FailureReason) -> None:
    run = run_out(start_trial(f"os.kill(os.getpid(), {int(number)})"))
    assert run.failure is not None
    assert run.failure.reason is reason


def test_a_typed_error_wins_over_the_exit_code(start_trial: StartTrial) -> None:
    run = run_out(
        start_trial("send('error', reason='DEVICE_OOM', message='the device ran out of memory'); sys.exit(1)")
    )
    assert run.failure is not None
    assert run.failure.reason is FailureReason.DEVICE_OOM


def test_a_stalled_trial_is_ended_with_its_activity(start_trial: StartTrial) -> None:
    run = run_out(start_trial("send('phase', name='measure'); time.sleep(600)", Limits(stall_s=0.5)))
    assert run.failure is not None
    assert run.failure.reason is FailureReason.STALLED
    assert "measuring" in run.failure.message


def test_events_that_came_while_the_supervisor_was_busy_are_no_stall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, gone = tmp_path / "go", tmp_path / "gone"
    code = f"""
        send("phase", name="measure")
        while not os.path.exists({str(go)!r}): time.sleep(0.01)
        send("phase", name="measure")
        open({str(gone)!r}, "w").close()
        time.sleep(600)
        """
    now_s = [1000.0]
    job = body_job(tmp_path / "body.py", code, forked=False)
    process = LocalLauncher().launch(job, tmp_path / "trial")
    run = TrialRun(process, Limits(stall_s=60), is_command=True, clock=lambda: now_s[0])

    def busy(_root: int, _main: int) -> None:
        go.touch()
        deadline = time.monotonic() + DEADLINE_S
        while not gone.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        now_s[0] += 100

    try:
        while run.seen.phase != "measure":
            run.poll(0.05)
        monkeypatch.setattr(run.seen.host_memory, "look", busy)
        events = run.poll(0)
        assert now_s[0] == 1100
        assert events[-1:] == [Phase("measure")]
        monkeypatch.undo()
        run.poll(0)
        assert run._stop_cause is None
        now_s[0] += 100
        run.poll(0)
        assert run._stop_cause is StopCause.STALL
    finally:
        run._clock = time.monotonic
        run._stop_at = time.monotonic()
        run.close()


def test_a_trial_that_is_told_to_end_is_looked_at_no_more(
    start_trial: StartTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start_trial("signal.signal(signal.SIGTERM, signal.SIG_IGN); send('phase', name='measure'); time.sleep(600)")
    looked: list[int] = []
    monkeypatch.setattr(run.seen.host_memory, "look", lambda root, _main: looked.append(root))
    while not looked:
        run.poll(0.05)
    before = len(looked)
    run.stop()
    run.poll(0.05)
    assert len(looked) == before


def test_a_trial_past_its_deadline_is_ended(start_trial: StartTrial) -> None:
    code = "while True: send('phase', name='measure'); time.sleep(0.05)"
    run = run_out(start_trial(code, Limits(stall_s=60, total_s=0.7)))
    assert run.failure is not None
    assert run.failure.reason is FailureReason.TIMEOUT


def test_a_trial_that_ignores_term_is_killed_with_all_its_children(start_trial: StartTrial, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    run = start_trial(f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        own = spawn("import time; time.sleep(600)")
        apart = spawn("import time; time.sleep(600)", start_new_session=True)
        open({str(pids)!r}, "w").write(str(apart.pid))
        send("phase", name="measure")
        time.sleep(600)
        """)
    apart = poll_until(run, pids)
    run.close()
    assert run.failure is not None
    assert run.failure.reason is FailureReason.KILLED
    wait_gone(apart)
    assert run.pid is not None
    wait_gone(run.pid)


def test_a_stop_right_after_the_launch_is_not_lost(start_trial: StartTrial) -> None:
    for _ in range(10):
        run = start_trial("time.sleep(600)")
        run.stop()
        run_out(run)
        assert run._wait_status in (signal.SIGTERM, (128 + signal.SIGTERM) << 8), "it had to be killed"


def test_what_a_finished_trial_leaves_is_killed(start_trial: StartTrial, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    run = run_out(
        start_trial(f"""
        left = spawn("import time; time.sleep(600)", start_new_session=True)
        open({str(pids)!r}, "w").write(str(left.pid))
        send("done")
        """)
    )
    assert run.state is TrialState.COMPLETE
    assert not is_alive(int(pids.read_text()))


def test_a_killed_keeper_leaves_nothing(start_trial: StartTrial, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    run = start_trial(f"open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    trial = poll_until(run, pids)
    os.kill(run._process.keeper.pid, signal.SIGKILL)
    run_out(run)
    assert run.failure is not None
    assert run.failure.reason is FailureReason.KILLED
    wait_gone(trial)


def test_stdin_is_empty_and_there_is_no_terminal(start_trial: StartTrial) -> None:
    run = run_out(
        start_trial("""
        assert sys.stdin.read() == ""
        try:
            open("/dev/tty")
        except OSError:
            send("done")
        """)
    )
    assert run.state is TrialState.COMPLETE


def test_fifty_megabytes_without_a_newline_are_capped(start_trial: StartTrial) -> None:
    run = run_out(
        start_trial("""
        chunk = b"x" * (1 << 20)
        for _ in range(50):
            os.write(1, chunk); os.write(2, chunk)
        os.write(1, b"the end")
        send("done")
        """)
    )
    assert run.state is TrialState.COMPLETE
    text = run._process.log.read_bytes()
    assert len(text) < 2 * LOG_CAP_BYTES + 200
    assert text.endswith(b"the end")
    assert b"bytes left out" in text


def test_garbage_on_the_event_pipe_is_ignored(start_trial: StartTrial) -> None:
    run = run_out(
        start_trial("""
        fd = int(os.environ["GPUTUNE_EVENTS_FD"])
        os.write(fd, b"\\xff\\x00 not json\\n[1]\\n{}\\n" + b"y" * 3_000_000 + b"\\n")
        send("done")
        """)
    )
    assert run.state is TrialState.COMPLETE
    assert run._events.bad_lines >= 4


def test_a_paced_trial_obeys_orders(start_trial: StartTrial) -> None:
    run = start_trial(
        """
        control = os.fdopen(int(os.environ["GPUTUNE_CONTROL_FD"]), "rb", buffering=0)
        send("phase", name="ready")
        while json.loads(control.readline())["order"] == "block":
            send("block", block={"samples": 1, "steps": 1, "elapsed_s": 1.0}, step_times_s=[1.0], planned=0)
        send("done")
        """,
        paced=True,
    )
    run.order(RunBlock())
    run.order(RunBlock())
    run.order(Finish())
    run_out(run)
    assert run.state is TrialState.COMPLETE
    assert len(run.seen.blocks) == 2


PARENT = """
import sys
from pathlib import Path
from gputune_tui.trial.launcher import LocalLauncher
from gputune_tui.trial.supervisor import Limits, TrialRun
from gputune_tui.trial.warm_launcher import WarmLauncher
from tests.trial.conftest import body_job
how, folder = sys.argv[1], Path(sys.argv[2])
launcher = WarmLauncher() if how == "warm" else LocalLauncher()
job = body_job(folder / "body.py", (folder / "code.py").read_text(), forked=how == "warm")
run = TrialRun(launcher.launch(job, folder / "trial"), Limits())
while True:
    run.poll()
"""


@pytest.mark.parametrize("how", ["fresh", pytest.param("warm", marks=pytest.mark.slow)])
def test_kill_of_the_parent_ends_the_whole_tree(tmp_path: Path, how: str) -> None:
    pids = tmp_path / "pids.json"
    (tmp_path / "code.py").write_text(
        "sleep = 'import time; time.sleep(600)'\n"
        "a = spawn(sleep); b = spawn(sleep, start_new_session=True)\n"
        f"open({str(pids)!r} + '.new', 'w').write(json.dumps([os.getppid(), os.getpid(), a.pid, b.pid]))\n"
        f"os.rename({str(pids)!r} + '.new', {str(pids)!r})\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", PARENT, how, str(tmp_path)], cwd=Path(__file__).parents[2])
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not pids.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        started = descendants(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    assert set(json.loads(pids.read_text())) <= set(started)
    for pid in started:
        wait_gone(pid)


def test_what_a_trial_tells_of_its_surroundings_is_part_of_the_launch(start_trial: StartTrial) -> None:
    run = run_out(
        start_trial("""
        send("warmup", steps=6, elapsed_s=1.0, settled=True, others_cpu_fraction=0.25, idle_cpu_fraction=0.5)
        send("block", block={"samples": 32, "steps": 2, "elapsed_s": 0.5, "new_shapes": 1,
             "pressure": {"cpu_fraction": 0.5}}, step_times_s=[0.25, 0.25], planned=1)
        send("denormals", fraction=0.125)
        send("done")
        """)
    )
    launch = run.launch()
    assert launch.conditions == Conditions(0.25, 0.5, 0.125)
    assert launch.blocks[0].new_shapes == 1
    assert launch.blocks[0].pressure == Pressure(0.5)
    assert launch.blocks[0].group_pressure is None
