"""Sending a signal to a process that is still the one that was meant."""

from __future__ import annotations

import os
import pwd
import signal

from gputune_tui.domain.telemetry import ProcessSnapshot
from gputune_tui.errors import EnvironmentProblem
from gputune_tui.telemetry.proc_stat import read_stat


def why_not(process: ProcessSnapshot) -> str | None:
    """Why this process is not to be signalled, one sentence; None if it may be tried."""
    if process.is_foreign or process.started is None:
        return f"number {process.pid} belongs to another namespace or has ended; nothing here can be signalled by it"
    if process.user not in (None, _own_name()):
        return f"process {process.pid} belongs to {process.user}; only your own are signalled"
    return None


def send_signal(process: ProcessSnapshot, number: signal.Signals) -> None:
    """Send it, if the process lives and is the one of the snapshot.

    Raises:
        EnvironmentProblem: it is another one, another user's or gone, or the system refused; one sentence.
    """
    why = why_not(process)
    if why is not None:
        raise EnvironmentProblem(why)
    try:
        # From here on the descriptor stands for this process alone, even if it ends and its number is used again.
        fd = os.pidfd_open(process.pid)
    except OSError as error:
        raise EnvironmentProblem(_failed(process, number, error)) from None
    try:
        if read_stat(f"/proc/{process.pid}").started != process.started:
            raise EnvironmentProblem(f"process {process.pid} has ended, and another has its number; nothing was sent")
        if os.stat(f"/proc/{process.pid}").st_uid != os.getuid():
            raise EnvironmentProblem(f"process {process.pid} is not yours any more; nothing was sent")
        signal.pidfd_send_signal(fd, number)
    except OSError as error:
        raise EnvironmentProblem(_failed(process, number, error)) from None
    finally:
        os.close(fd)


def _failed(process: ProcessSnapshot, number: signal.Signals, error: OSError) -> str:
    return f"{number.name} could not be sent to process {process.pid}: {error.strerror}"


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
