"""Pure: how a trial process ended, its last events and who stopped it -> TrialState and Failure."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from enum import Enum

from gputune_tui.domain.protocol import Error, Stopped
from gputune_tui.domain.trial import Failure, FailureReason, TrialState
from gputune_tui.text import signal_text
from gputune_tui.trial.memory_mark import OverMark
from gputune_tui.units import bytes_text


class StopCause(str, Enum):
    """Why the supervisor stopped a trial."""

    DEADLINE = "deadline"
    STALL = "stall"
    USER = "user"
    MEMORY = "memory"
    """It took more than its budget outside what its allocator counts."""
    HOST_BUDGET = "host budget"
    """Its process tree took more of the host's memory than it may."""
    FINISHED = "finished"
    """The trial had reported all that was asked and did not leave by itself."""


@dataclass(frozen=True)
class Ending:
    """Everything that decides the outcome."""

    wait_status: int | None
    """As os.waitpid gives it; None where the keeper was lost."""
    done: bool = False
    """The trial said that it did all it was asked."""
    error: Error | None = None
    stopped: Stopped | None = None
    """What the trial was doing when it was told to stop."""
    stop_cause: StopCause | None = None
    limit_s: float | None = None
    """The deadline or stall limit that was hit."""
    over: OverMark | None = None
    """What it took when it was stopped for its memory."""
    phase: str = "start"
    """Last phase that the trial reported."""
    host_oom_kills: int = 0
    """Processes that the kernel's out-of-memory killer ended meanwhile."""
    log_tail: str = ""
    """Last lines of the output: shown, never interpreted."""
    is_command: bool = False
    is_frozen: bool = False
    """Its process was stopped (SIGSTOP) when the limit was hit."""
    host_bytes: int | None = None
    """What its processes held of the host's memory when they were found to hold too much."""
    host_budget_bytes: int | None = None
    other_processes: int = 0
    """Processes beside its main one at that moment."""


_UNSEEN = (
    "; no Python process of it was seen importing torch: does it set PYTHONPATH anew (keep what is there: "
    "PYTHONPATH=src:$PYTHONPATH), or start Python with -I, -E or -S?"
)
_NATIVE_FAULTS = (
    signal.SIGSEGV,
    signal.SIGABRT,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
)
_PHASE_WORDS = {
    "start": "starting",
    "script": "running before its first optimizer step",
    "import": "importing the workload",
    "build": "building the model",
    "warm_up": "warming up",
    "largest_batch": "running the longest batch (largest_batch)",
    "evaluation": "running the evaluation step (eval_step)",
    "measure": "measuring",
    "ready": "waiting for its turn",
    "breakdown": "measuring the breakdown",
    "data_wait": "waiting for data",
    "copy": "copying a batch to the device",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer step",
    "finish": "finishing",
    "noise": "measuring the loss's noise",
}


def decide(ending: Ending, log: str | None) -> tuple[TrialState, Failure | None]:
    """The state of the trial and, for FAIL, the reason in words."""
    if ending.done and ending.error is None:
        return TrialState.COMPLETE, None
    reason, message, in_workload = _failure(ending)
    return TrialState.FAIL, Failure(reason, message, log, in_workload)


def _failure(ending: Ending) -> tuple[FailureReason, str, bool]:
    if ending.error is not None:
        if ending.error.reason is FailureReason.KILLED and ending.host_oom_kills:
            text = "the kernel killed a loader worker: the host ran out of memory; fewer workers or smaller batches"
            return FailureReason.HOST_OOM, text, False
        return ending.error.reason, ending.error.message, ending.error.in_workload
    if ending.stop_cause is StopCause.USER:
        return FailureReason.KILLED, f"interrupted while {_activity(ending)}", False
    if ending.stop_cause is StopCause.MEMORY and ending.over is not None:
        return FailureReason.OVER_BUDGET, _over_mark(ending, ending.over), False
    if ending.stop_cause is StopCause.HOST_BUDGET:
        return FailureReason.OVER_BUDGET, _over_host_budget(ending), False
    if ending.stop_cause in (StopCause.DEADLINE, StopCause.STALL):
        return _limit(ending)
    if ending.wait_status is None:
        return FailureReason.KILLED, f"the trial's keeper was killed from outside while {_activity(ending)}", False
    if os.WIFSIGNALED(ending.wait_status):
        return _signalled(os.WTERMSIG(ending.wait_status), ending)
    if ending.stopped is not None and os.WEXITSTATUS(ending.wait_status) == 128 + signal.SIGTERM:
        return _signalled(signal.SIGTERM, ending)  # its answer to the signal, after which it ends by itself
    return _exited(os.WEXITSTATUS(ending.wait_status), ending)


def _activity(ending: Ending) -> str:
    doing = ending.stopped.activity if ending.stopped else ending.phase
    words = _PHASE_WORDS.get(doing, doing)
    where = f" ({ending.stopped.where})" if ending.stopped and ending.stopped.where else ""
    return words + where


def _over_mark(ending: Ending, over: OverMark) -> str:
    return (
        f"ended while {_activity(ending)}: it took {bytes_text(over.taken_bytes)} of the budget of "
        f"{bytes_text(over.budget_bytes)}, in memory outside what the cap can limit (mapped files, other libraries); "
        "a larger --budget allows more"
    )


def _over_host_budget(ending: Ending) -> str:
    others = ending.other_processes
    with_whom = f" with its {others} other process{'es'[: 2 * (others > 1)]}" if others else ""
    advice = "fewer workers, a smaller prefetch" if others else "smaller batches"
    return (
        f"it took {bytes_text(ending.host_bytes)} of host memory{with_whom} while {_activity(ending)}, more than the "
        f"host's budget of {bytes_text(ending.host_budget_bytes)}; {advice} or a larger --host-budget"
    )


def _limit(ending: Ending) -> tuple[FailureReason, str, bool]:
    seconds = f"{ending.limit_s or 0:.0f} s"
    if ending.stop_cause is StopCause.STALL:
        last = f'; last line of its output: "{ending.log_tail}"' if ending.log_tail else ""
        frozen = " because its process was stopped (SIGSTOP)" if ending.is_frozen else ""
        text = f"stalled {_activity(ending)}{frozen}: no progress for {seconds}; --stall-timeout allows more{last}"
        return FailureReason.STALLED, text, False
    text = f"not finished after {seconds} while {_activity(ending)}; --trial-timeout allows more"
    return FailureReason.TIMEOUT, text, False


def _signalled(number: int, ending: Ending) -> tuple[FailureReason, str, bool]:
    name = signal_text(number)
    activity = _activity(ending)
    if number == signal.SIGKILL and ending.host_oom_kills:
        text = f"the kernel killed it while {activity}: the host ran out of memory; smaller batches or fewer workers"
        return FailureReason.HOST_OOM, text, False
    if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        return FailureReason.KILLED, f"killed from outside ({name}) while {activity}", False
    if number == signal.SIGBUS:
        text = f"bus error while {activity}: most likely /dev/shm is full; fewer workers or a larger --shm-size"
        return FailureReason.SHM, text, False
    if number == signal.SIGXCPU:
        return FailureReason.TIMEOUT, f"its CPU time was used up while {activity}; see ulimit -t", False
    if number == signal.SIGABRT and ending.log_tail:
        return FailureReason.CRASH, f'native code gave up ({name}) while {activity}: "{ending.log_tail}"', True
    if number in _NATIVE_FAULTS or number not in set(signal.Signals):
        return FailureReason.CRASH, f"native code died ({name}) while {activity}; the log may tell more", True
    return FailureReason.CRASH, f"ended by {name} while {activity}: a signal that nothing in it handles", True


def _exited(code: int, ending: Ending) -> tuple[FailureReason, str, bool]:
    last = f': "{ending.log_tail}"' if ending.log_tail else ""
    if ending.is_command and code == 127 and ending.phase == "start":
        return FailureReason.CRASH, f"the command could not be run{last}", True
    if code == 0:
        hint = ""
        if ending.is_command:
            hint = _UNSEEN if ending.phase == "start" else "; it never called enough optimizer steps"
        text = f"it ended by itself (exit code 0) while {_activity(ending)}, before the measurement was complete{hint}"
        return FailureReason.ENDED_EARLY, text, True
    return FailureReason.CRASH, f"it ended with exit code {code} while {_activity(ending)}{last}", True
