"""The screen's end of the engine process: start it, tell it, hear it, and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from gputune_tui.engine.events import EngineEvent, Problem, TaskEnded, decode_event
from gputune_tui.engine.outbox import MAX_EVENT_BYTES
from gputune_tui.engine.requests import Request, Shutdown, encode_request
from gputune_tui.engine.wire import LineReader
from gputune_tui.errors import EnvironmentProblem, ExitCode, ProtocolError
from gputune_tui.text import last_line
from gputune_tui.trial.keeper import descendants

READ_BYTES = 1 << 16
POLL_BYTES = 1 << 17
"""The most that one `poll` reads, so that it does not hold up the screen."""
COMPLAINT_BYTES = 4096
"""How much of the end of the engine's stderr is kept."""
COMPLAINT_CHARACTERS = 200
"""How much of its last line is shown."""
EXIT_PATIENCE_S = 1.0
"""How long an engine that has closed its connection may take to end."""
KILL_PATIENCE_S = 5.0
"""How long killed processes may take to vanish."""
TICK_S = 0.05


class EngineClient:
    """One engine process at a time. No method but `start` (milliseconds) and `close` ever blocks.

    The process has a session of its own, so that the terminal's signals do not reach it, and the folder of its starter.
    What it writes to stderr, as a crash does, goes to a non-blocking pipe: what does not fit is lost, and the last line
    is told when it ends.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stderr_fd: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._lines = LineReader(MAX_EVENT_BYTES)
        self._unsent = bytearray()
        self._complaint = b""
        self._is_asked_to_end = False
        self._closed_at: float | None = None
        """When the engine's end of the connection was found closed."""

    @property
    def alive(self) -> bool:
        """False before `start`, after `close`, and once `poll` has told that the engine ended."""
        return self._socket is not None

    @property
    def pid(self) -> int | None:
        """Of the engine process, also after its end."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the engine process; again after it ended.

        Raises:
            EnvironmentProblem: it cannot be started.
        """
        assert not self.alive, "close the engine that runs first"
        self._reset()
        ends: list[int] = []
        try:
            ours, theirs = socket.socketpair()
            ends.append(theirs.detach())
            self._socket = ours
            ours.setblocking(False)
            self._stderr_fd, complaint = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            ends.append(complaint)
            # `-m` puts the working directory first on sys.path, where the user's own may hold a `json.py` of theirs:
            # the process starts in another one and goes there afterwards, by descriptor, since it may have no path.
            ends.append(os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gputune_tui.engine.server", str(ends[0]), str(ends[2])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaint,
                cwd=Path(__file__).parents[2],
                pass_fds=(ends[0], ends[2]),
                start_new_session=True,
            )
        except OSError as error:
            self._let_go()
            raise EnvironmentProblem(
                f"cannot start the engine process: {error.strerror}; see ulimit -u and -n"
            ) from error
        finally:
            for fd in ends:
                os.close(fd)

    def send(self, request: Request) -> None:
        """Hand over a request; without a living engine it is dropped, which `poll` has told or will tell."""
        self._is_asked_to_end = self._is_asked_to_end or isinstance(request, Shutdown)
        if self._socket is not None:
            self._unsent += encode_request(request)
            self._flush()

    def poll(self) -> list[EngineEvent]:
        """What the engine has said since; sends what `send` could not, so it is called now and then in any case.

        An end that nobody asked for is told once, as TaskEnded of "engine".
        """
        if self._socket is None:
            return []
        self._flush()
        events = self._receive()
        self._hear_complaints()
        if self._closed_at is not None and (how := self._ending()) is not None:
            if not self._is_asked_to_end:
                events.append(TaskEnded("engine", how, ExitCode.INTERNAL))
            self._let_go()
        return events

    def fileno(self) -> int:
        """To watch for reading while `alive`; `poll` closes it when it tells that the engine ended."""
        assert self._socket is not None, "there is no engine"
        return self._socket.fileno()

    def close(self, patience_s: float = 10.0) -> None:
        """Shut the engine down; kill it if it takes longer than `patience_s`. Returns when nothing of it runs."""
        process = self._process
        if process is None:
            return
        self.send(Shutdown())
        deadline = time.monotonic() + patience_s
        while process.poll() is None and time.monotonic() < deadline:
            if self._socket is None or self._closed_at is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(TICK_S)
            else:
                select.select([self._socket], [], [], TICK_S)
                self._flush()
                self._receive()
        if process.poll() is None:
            _kill_tree(process)
        self._let_go()

    def _flush(self) -> None:
        if self._socket is None or not self._unsent:
            return
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # nobody is there to hear it, which reading finds out too

    def _receive(self) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        taken = 0
        while self._socket is not None and self._closed_at is None and taken < POLL_BYTES:
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self._closed_at = time.monotonic()
            taken += len(data)
            events += self._read(data)
        return events

    def _read(self, data: bytes) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        for line in self._lines.feed(data):
            try:
                events.append(decode_event(line))
            except ProtocolError as error:
                events.append(Problem(f"the engine said something that this program does not understand: {error}"))
        return events

    def _hear_complaints(self) -> None:
        if self._stderr_fd is not None:
            with contextlib.suppress(BlockingIOError):
                while data := os.read(self._stderr_fd, READ_BYTES):
                    self._complaint = (self._complaint + data)[-COMPLAINT_BYTES:]

    def _ending(self) -> str | None:
        """How the engine ended, in one sentence; None while it is about to."""
        assert self._process is not None
        assert self._closed_at is not None
        code = self._process.poll()
        if code is None:
            if time.monotonic() < self._closed_at + EXIT_PATIENCE_S:
                return None
            self._process.kill()
            how = "it closed its connection"
        else:
            how = signal_name(-code if code < 0 else code - 128) or f"exit code {code}"
        said = last_line(bytes(self._complaint), COMPLAINT_CHARACTERS)
        last = f", and said at last: {said}" if said else ""
        return f"the engine process ended ({how}{last}); trials so far are kept, and opening the workload goes on there"

    def _let_go(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._stderr_fd is not None:
            os.close(self._stderr_fd)
            self._stderr_fd = None


def signal_name(number: int) -> str | None:
    """ "signal 9, SIGKILL"; None where it is no signal."""
    if not 0 < number < signal.NSIG:
        return None
    # Real-time signals are valid and have no name.
    return f"signal {number}" + (f", {signal.Signals(number).name}" if number in set(signal.Signals) else "")


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill the engine; its trials' keepers then end what they own, and are killed themselves if they do not."""
    with contextlib.ExitStack() as stack:
        left: list[int] = []
        for pid in descendants(process.pid):
            with contextlib.suppress(OSError):  # it is gone, or the kernel (before 5.3) knows no such descriptor
                left.append(os.pidfd_open(pid))
                stack.callback(os.close, left[-1])
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_PATIENCE_S)
        deadline = time.monotonic() + KILL_PATIENCE_S
        while left and (wait_s := deadline - time.monotonic()) > 0:
            ended = select.select(left, [], [], wait_s)[0]
            left = [fd for fd in left if fd not in ended]
        for fd in left:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
