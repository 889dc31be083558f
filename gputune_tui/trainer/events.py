"""The trial's end of the event pipe, and its answer to SIGTERM."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import types
from pathlib import Path
from typing import NoReturn

from gputune_tui.domain.job import CONTROL_VARIABLE, EVENTS_PLACE_VARIABLE, EVENTS_VARIABLE
from gputune_tui.domain.protocol import Event, Order, Phase, Stopped, decode_order, encode
from gputune_tui.trainer.describe import is_users_file

BEAT_S = 2.0
"""A trial that goes on says so this often, so that its parent can tell slow from stalled."""


class ParentsPipe:
    """This process's end of a pipe that its parent gave, though user code may close every descriptor it finds.

    A number that was closed may by now be a file of the user's: each use first looks whether it still is that pipe. If
    not, the pipe is opened again where the process that started this one (the keeper) still holds it.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._number = fd
        self._holder = os.getppid()
        self._identity = fd_identity(fd)

    def fileno(self, flags: int) -> int | None:
        """Its number, opened again with `flags` where it has to be; None where it is lost."""
        if self._identity is None or fd_identity(self._fd) == self._identity:
            return self._fd
        with contextlib.suppress(OSError):
            again = os.open(f"/proc/{self._holder}/fd/{self._number}", flags | os.O_CLOEXEC)
            if fd_identity(again) == self._identity:
                self._fd = again
                return again
            os.close(again)
        return None


def fd_identity(fd: int) -> tuple[int, int] | None:
    """Device and inode of an open file: whether a descriptor is still what it was. None where it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class EventSink:
    """Writes events to the pipe that the parent gave; what it cannot write is lost, never raised."""

    def __init__(self, fd: int | None) -> None:
        self._pipe = None if fd is None else ParentsPipe(fd)
        self._phase = "start"
        self._last = time.perf_counter()

    @staticmethod
    def from_environment() -> EventSink:
        """The sink named in the environment; programs that the trial starts do not inherit it."""
        text = os.environ.get(EVENTS_VARIABLE, "")
        fd = int(text) if text.isdigit() else None
        if fd is not None:
            with contextlib.suppress(OSError):
                os.set_inheritable(fd, False)
        return EventSink(fd)

    @staticmethod
    def of_command() -> EventSink:
        """The sink of any process of a command; its children inherit it.

        Whatever started the process may have closed the pipe, and the number may be another file's by now.
        """
        text = os.environ.get(EVENTS_VARIABLE, "")
        inode, _, path = os.environ.get(EVENTS_PLACE_VARIABLE, "").partition(" ")
        identity = fd_identity(int(text)) if text.isdigit() else None
        if identity is not None and str(identity[1]) == inode:
            return EventSink(int(text))
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.set_blocking(fd, True)
            if str(os.fstat(fd).st_ino) == inode:
                return EventSink(fd)
            os.close(fd)
        return EventSink(None)

    def send(self, event: Event) -> None:
        """Write one event as one line."""
        self._last = time.perf_counter()
        if isinstance(event, Phase):
            self._phase = event.name
        fd = None if self._pipe is None else self._pipe.fileno(os.O_WRONLY)
        if fd is not None:
            with contextlib.suppress(OSError):
                data = encode(event)
                while data:
                    data = data[os.write(fd, data) :]

    @property
    def current_phase(self) -> str:
        """The phase that was entered last."""
        return self._phase

    def phase(self, name: str, detail: str = "") -> None:
        """The trial enters a phase."""
        self.send(Phase(name, detail))

    def beat(self, detail: str = "") -> None:
        """Say that the phase goes on, at most every `BEAT_S`; costs one clock reading otherwise."""
        if time.perf_counter() - self._last > BEAT_S:
            self.send(Phase(self._phase, detail))

    def answer_sigterm(self) -> None:
        """On SIGTERM tell what the trial was doing, then end at once; workers it forked just end."""
        owner = os.getpid()

        def answer(_number: int, frame: types.FrameType | None) -> NoReturn:
            try:
                if os.getpid() == owner:
                    # The loader's own handler raises when a worker ends, which the same signal makes it do.
                    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
                    self.send(Stopped(*what_runs(frame, self._phase)))
            finally:
                os._exit(128 + signal.SIGTERM)

        signal.signal(signal.SIGTERM, answer)


def what_runs(frame: types.FrameType | None, phase: str) -> tuple[str, str]:
    """What the stack is doing (a phase of the step, else `phase`) and where the user's own code stands in it."""
    activity, where = "", ""
    while frame is not None:
        path, function = frame.f_code.co_filename, frame.f_code.co_name
        folder = path.replace("\\", "/")
        if not where and is_users_file(path):
            where = f"{Path(path).name}:{frame.f_lineno} {function}"
        if not activity:
            if "torch/utils/data/" in folder:
                activity = "data_wait"
            elif folder.endswith("torch/autograd/__init__.py") or function == "backward":
                activity = "backward"
            elif "torch/optim/" in folder:
                activity = "optimizer"
            elif folder.endswith("trainer/workload.py") and function in ("loss", "mean_loss"):
                activity = "forward"
        frame = frame.f_back
    return activity or phase, where


class Orders:
    """The orders of a paced trial, one line each."""

    def __init__(self) -> None:
        fd = int(os.environ[CONTROL_VARIABLE])
        os.set_inheritable(fd, False)
        self._pipe = ParentsPipe(fd)

    def next(self) -> Order | None:
        """Wait for the next order; None when the parent is gone."""
        line = b""
        # Byte by byte, so that nothing of the next order is taken: one comes every half second at most.
        while (fd := self._pipe.fileno(os.O_RDONLY)) is not None and (byte := os.read(fd, 1)):
            line += byte
            if byte == b"\n":
                return decode_order(line)
        return None
