"""How a trial ended -> its state and the reason in words; pure, so every case is a line."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from gputune_tui.domain.protocol import Error, Stopped
from gputune_tui.domain.trial import FailureReason, TrialState
from gputune_tui.trial.outcome import Ending, StopCause, decide


def exited(code: int) -> int:
    """A wait status as os.waitpid gives it."""
    return code << 8


def failure(**fields: Any) -> tuple[FailureReason, str, bool]:
    ending = Ending(**{"wait_status": exited(1), **fields})
    state, found = decide(ending, "log.txt")
    assert state is TrialState.FAIL
    assert found is not None
    assert found.log == "log.txt"
    assert found.message == " ".join(found.message.split())
    return found.reason, found.message, found.in_workload


@pytest.mark.parametrize("wait_status", [0, exited(1), signal.SIGKILL, None])
@pytest.mark.parametrize("cause", [None, StopCause.FINISHED, StopCause.USER])
def test_a_trial_that_reported_everything_is_complete_however_it_left(
    wait_status: int | None, cause: StopCause | None
) -> None:
    assert decide(Ending(wait_status, done=True, stop_cause=cause), "log") == (TrialState.COMPLETE, None)


@pytest.mark.parametrize("wait_status", [0, exited(1), signal.SIGKILL, None])
@pytest.mark.parametrize("cause", [None, StopCause.DEADLINE, StopCause.USER])
@pytest.mark.parametrize("done", [False, True])
def test_a_typed_error_is_the_reason_whatever_came_after(
    wait_status: int | None, cause: StopCause | None, done: bool
) -> None:
    error = Error(FailureReason.OVER_BUDGET, "it needs more", in_workload=True)
    found = failure(wait_status=wait_status, stop_cause=cause, error=error, done=done)
    assert found == (FailureReason.OVER_BUDGET, "it needs more", True)


def test_a_users_stop_is_an_interruption() -> None:
    reason, message, in_workload = failure(stop_cause=StopCause.USER, wait_status=signal.SIGKILL, phase="measure")
    assert (reason, message, in_workload) == (FailureReason.KILLED, "interrupted while measuring", False)


def test_a_stall_tells_what_the_trial_was_waiting_for() -> None:
    reason, message, _ = failure(
        stop_cause=StopCause.STALL, limit_s=30.0, phase="warm_up", stopped=Stopped("data_wait", "w.py:7 __getitem__")
    )
    assert reason is FailureReason.STALLED
    assert message.startswith("stalled waiting for data (w.py:7 __getitem__): no progress for 30 s")
    assert "--stall-timeout" in message


def test_a_deadline_falls_back_to_the_last_phase() -> None:
    reason, message, in_workload = failure(stop_cause=StopCause.DEADLINE, limit_s=600.0, phase="build")
    assert (reason, in_workload) == (FailureReason.TIMEOUT, False)
    assert message == "not finished after 600 s while building the model; --trial-timeout allows more"


@pytest.mark.parametrize(
    ("number", "oom_kills", "reason", "words", "in_workload"),
    [
        (signal.SIGKILL, 1, FailureReason.HOST_OOM, "the host ran out of memory", False),
        (signal.SIGKILL, 0, FailureReason.KILLED, "killed from outside (SIGKILL)", False),
        (signal.SIGTERM, 0, FailureReason.KILLED, "killed from outside (SIGTERM)", False),
        (signal.SIGTERM, 3, FailureReason.KILLED, "killed from outside (SIGTERM)", False),
        (signal.SIGHUP, 0, FailureReason.KILLED, "killed from outside (SIGHUP)", False),
        (signal.SIGINT, 0, FailureReason.KILLED, "killed from outside (SIGINT)", False),
        (signal.SIGBUS, 0, FailureReason.SHM, "/dev/shm is full", False),
        (signal.SIGSEGV, 0, FailureReason.CRASH, "native code died (SIGSEGV)", True),
        (signal.SIGABRT, 0, FailureReason.CRASH, "native code died (SIGABRT)", True),
        (signal.SIGFPE, 0, FailureReason.CRASH, "native code died (SIGFPE)", True),
        (signal.SIGXCPU, 0, FailureReason.TIMEOUT, "its CPU time was used up", False),
        (signal.SIGALRM, 0, FailureReason.CRASH, "ended by SIGALRM", True),
        (37, 0, FailureReason.CRASH, "native code died (signal 37)", True),
    ],
)
def test_signals(number: int, oom_kills: int, reason: FailureReason, words: str, in_workload: bool) -> None:
    found = failure(wait_status=number, host_oom_kills=oom_kills, phase="measure")
    assert found[0] is reason
    assert words in found[1]
    assert "while measuring" in found[1]
    assert found[2] is in_workload


def test_an_abort_is_told_with_what_was_said() -> None:
    found = failure(wait_status=signal.SIGABRT, phase="measure", log_tail="free(): invalid pointer")
    assert found[:2] == (
        FailureReason.CRASH,
        'native code gave up (SIGABRT) while measuring: "free(): invalid pointer"',
    )


def test_a_worker_that_the_kernel_killed_is_memory() -> None:
    error = Error(FailureReason.KILLED, "a loader worker was killed from outside (SIGKILL)")
    assert failure(error=error)[0] is FailureReason.KILLED
    reason, message, in_workload = failure(error=error, host_oom_kills=1)
    assert (reason, in_workload) == (FailureReason.HOST_OOM, False)
    assert "the kernel killed a loader worker" in message


def test_a_frozen_process_is_a_stall_of_its_own() -> None:
    message = failure(stop_cause=StopCause.STALL, limit_s=9.0, phase="measure", is_frozen=True)[1]
    assert message.startswith("stalled measuring because its process was stopped (SIGSTOP): no progress for 9 s")


def test_a_core_dump_is_still_that_signal() -> None:
    assert failure(wait_status=signal.SIGSEGV | 0x80)[0] is FailureReason.CRASH


def test_a_lost_keeper_is_a_kill_from_outside() -> None:
    found = failure(wait_status=None, phase="backward")
    assert found[:2] == (FailureReason.KILLED, "the trial's keeper was killed from outside while in the backward pass")


def test_an_exit_code_is_shown_with_the_last_words_of_the_log() -> None:
    reason, message, in_workload = failure(wait_status=exited(3), phase="import", log_tail="boom")
    assert (reason, in_workload) == (FailureReason.CRASH, True)
    assert message == 'it ended with exit code 3 while importing the workload: "boom"'
    assert failure(wait_status=exited(3), phase="import")[1].endswith("importing the workload")


def test_words_in_the_log_decide_nothing() -> None:
    found = failure(wait_status=exited(1), log_tail="CUDA out of memory. Killed. No space left on device")
    assert found[0] is FailureReason.CRASH


@pytest.mark.parametrize("is_command", [False, True])
def test_an_early_end_with_code_0_is_no_success(is_command: bool) -> None:
    reason, message, _ = failure(wait_status=0, phase="warm_up", is_command=is_command)
    assert reason is FailureReason.ENDED_EARLY
    assert "while warming up, before the measurement was complete" in message
    assert ("optimizer steps" in message) is is_command


def test_a_command_that_does_not_exist() -> None:
    assert "the command could not be run" in failure(wait_status=exited(127), is_command=True)[1]
    assert "exit code 127" in failure(wait_status=exited(127), is_command=True, phase="measure")[1]
    assert "exit code 127" in failure(wait_status=exited(127))[1]


def test_an_unknown_phase_is_shown_as_it_is() -> None:
    assert "while rewinding the tape" in failure(wait_status=exited(1), phase="rewinding the tape")[1]


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (0, "host memory while measuring"),
        (1, "with its 1 other process while"),
        (4, "with its 4 other processes while"),
    ],
)
def test_the_hosts_budget_is_named_with_who_took_it(others: int, words: str) -> None:
    ending = Ending(
        wait_status=signal.SIGKILL,
        stop_cause=StopCause.HOST_BUDGET,
        phase="measure",
        host_bytes=3 << 30,
        host_budget_bytes=2 << 30,
        other_processes=others,
    )
    state, failure = decide(ending, None)
    assert state is TrialState.FAIL
    assert failure is not None
    assert failure.reason is FailureReason.OVER_BUDGET
    assert failure.message.startswith("it took 3.00 GiB of host memory")
    assert words in failure.message
    assert "the host's budget of 2.00 GiB" in failure.message
    assert not failure.in_workload
