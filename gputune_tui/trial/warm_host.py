"""Client of the warm host: the process with torch imported from which trials are forked (`trainer/host.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gputune_tui.text import last_line, signal_text
from gputune_tui.trial.keeper import PR_SET_CHILD_SUBREAPER, prctl
from gputune_tui.trial.launcher import BOOTSTRAP, KEEPER, LOG_CAP_BYTES, Pipes

ROOM_VARIABLE = "GPUTUNE_ROOM"
"""Named like this in `trainer/host.py` too."""
ROOM_BYTES = 4096 + 64
"""The longest path of Linux, and the name of the variable before it."""
ANSWER_S = 10.0
"""A fork takes tens of milliseconds; a host that takes longer than this is not waited for."""
START_S = 120.0
"""Imports from a slow network disk take a minute; after this trials are started without the host."""
ENDING_S = 1.0
MESSAGE_BYTES = 1 << 16
COMPLAINT_BYTES = 4096


class HostFailed(Exception):
    """No trial was forked; the message says why, as the end of a sentence that begins with "it"."""

    def __init__(self, message: str, for_good: bool = False) -> None:
        super().__init__(message)
        self.for_good = for_good
        """Another host of the same kind would fail alike."""


class ForkedKeeper:
    """A keeper that is the warm host's child, or this process's own once the host is dead."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        """SIGKILL to it. Only while its status pipe is open, so that the pid is still its own."""
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is gone.

        Raises:
            subprocess.TimeoutExpired: it is still there.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._is_alive():
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("keeper", timeout or 0.0)
            time.sleep(0.005)
        with contextlib.suppress(OSError):
            os.waitpid(self.pid, os.WNOHANG)

    def _is_alive(self) -> bool:
        try:
            state = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            return False
        return state not in (b"Z", b"X")


class WarmHost:
    """One host: it has one environment and one current folder, which its trials take over."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start it; it is of use once `ready` names a job's kind.

        Raises:
            HostFailed: no process could be started.
        """
        self.ready: frozenset[str] = frozenset()
        """The kinds of jobs that it can fork now."""
        self.started = time.monotonic()
        self._environment = dict(environment)
        self._folder = _identity(".")
        self._torch: str | None = None
        self._torch_identity: tuple[int, ...] | None = None
        self._refused: str | None = None
        self._complaint = b""
        # What a dead keeper leaves falls to this process; the host itself adopts nobody.
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._socket, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._output_fd, output = os.pipe()
        os.set_blocking(self._output_fd, False)
        try:
            self._process = subprocess.Popen(
                [sys.executable, str(BOOTSTRAP), "--host", str(far.fileno()), str(KEEPER)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment, ROOM_VARIABLE: " " * ROOM_BYTES},
                pass_fds=[far.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            os.close(self._output_fd)
            raise HostFailed(f"could not be started ({error.strerror})") from error
        finally:
            far.close()
            os.close(output)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether a trial forked from it is what a fresh one would be: same environment, folder and torch."""
        same_torch = self._torch is None or _identity(self._torch) == self._torch_identity
        return same_torch and environment == self._environment and _identity(".") == self._folder

    def poll(self, timeout_s: float) -> None:
        """Hear what it says for up to `timeout_s`.

        Raises:
            HostFailed: it has ended, or it refuses.
        """
        self._hear_output()
        if select.select([self._socket], [], [], timeout_s)[0]:
            self._take(self._receive())

    def fork(self, job_path: Path, log: Path, pipes: Pipes) -> ForkedKeeper:
        """Fork a trial that takes over the far ends of `pipes`.

        Raises:
            HostFailed: there is none; whatever may have been forked ends when `pipes` are closed.
        """
        request = {"job": str(job_path.absolute()), "log": str(log.absolute()), "log_cap_bytes": LOG_CAP_BYTES}
        events, status, orders, *control = pipes.childs_ends()
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [orders, status, events, *control])
        except OSError as error:
            raise HostFailed(self._ending()) from error
        deadline = time.monotonic() + ANSWER_S
        while (left_s := deadline - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left_s)[0]:
                message = self._receive()
                self._take(message)
                if "keeper" in message:
                    return ForkedKeeper(message["keeper"])
                if "failed" in message:
                    raise HostFailed(message["failed"])
        raise HostFailed(f"did not answer for {ANSWER_S:.0f} s")

    def close(self) -> None:
        """End it. Trials that were forked from it go on under their keepers."""
        self._process.kill()
        self._process.wait()
        self._socket.close()
        os.close(self._output_fd)

    def _take(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            raise HostFailed(message["refused"], for_good=True)
        if "ready" in message:
            self.ready = frozenset(message["ready"])
            self._torch = message["torch"]
            self._torch_identity = _identity(message["torch"])

    def _receive(self) -> dict[str, Any]:
        try:
            data = self._socket.recv(MESSAGE_BYTES)
        except OSError:
            data = b""
        if not data:
            raise HostFailed(self._ending())
        message: dict[str, Any] = json.loads(data)
        return message

    def _ending(self) -> str:
        """How it ended, with its last words."""
        # Its socket closes a little before it is gone.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_S)
        self._process.kill()
        code = self._process.wait()
        self._hear_output()
        how = f"signal {signal_text(-code).removeprefix('signal ')}" if code < 0 else f"exit code {code}"
        said = last_line(bytes(self._complaint))
        return f"ended ({how}{': ' + said if said else ''})"

    def _hear_output(self) -> None:
        """Keep the last of its output, so that it never waits for a reader."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._output_fd, MESSAGE_BYTES):
                self._complaint = (self._complaint + data)[-COMPLAINT_BYTES:]


def _identity(path: str) -> tuple[int, ...] | None:
    """What changes when another file or folder takes the place of this one; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    changed_ns = () if os.path.isdir(path) else (found.st_mtime_ns, found.st_size)
    return (found.st_dev, found.st_ino, *changed_ns)
