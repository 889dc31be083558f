"""The engine as a process of its own: requests in, events out (`python -m gputune_tui.engine.server FD FOLDER_FD`).

One thread drives the engine's generators and, between two of their ticks, reads requests and sends events. It waits for
nobody: a reader that has stopped costs memory up to a limit, one that is gone ends the trial and this process.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    # `-m` has put the folder that holds this package before the standard library, where an old backport of one of its
    # modules may lie.
    sys.path.append(sys.path.pop(0))

import contextlib
import faulthandler
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator

from gputune_tui.engine.commands import Compare, Search
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import (
    EngineEvent,
    Problem,
    QueueChanged,
    StudyOpened,
    TaskEnded,
    TaskStarted,
    TrialFinished,
    TrialStarted,
)
from gputune_tui.engine.exporting import export_from, preview_from
from gputune_tui.engine.faults import internal_error
from gputune_tui.engine.outbox import Outbox
from gputune_tui.engine.requests import (
    MAX_REQUEST_BYTES,
    Cancel,
    Do,
    Export,
    Open,
    Preview,
    Request,
    Share,
    Shutdown,
    decode_request,
)
from gputune_tui.engine.running import Task
from gputune_tui.engine.study_session import StudySession
from gputune_tui.engine.study_trials import study_trials
from gputune_tui.engine.wire import LineReader
from gputune_tui.errors import ExitCode, GputuneError, ProtocolError, UsageError

READ_BYTES = 1 << 16
MAX_WAITING = 100
FAREWELL_S = 1.0
"""How long a reader that shuts the engine down is given to take its last events."""
CANCELLED = 128 + signal.SIGINT


class Server:
    """Carries out the requests of one connection. Every Open and every Do ends in exactly one TaskEnded."""

    def __init__(self, connection: socket.socket, engine: Engine) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._engine = engine
        self._lines = LineReader(MAX_REQUEST_BYTES)
        self._outbox = Outbox(self._resync)
        self._waiting: deque[Open | Do] = deque()
        self._told_waiting: tuple[str, ...] = ()
        self._task: Task | None = None
        self._title = ""
        self._running: dict[int, TrialStarted] = {}
        self._reader_is_gone = False
        self._shut_down = False
        self._terminated = False
        self._wake, self._waker = socket.socketpair()

    def run(self) -> int:
        """Serve until the reader shuts it down or is gone, or SIGTERM comes; returns the exit code."""
        self._note_signals()
        try:
            while not (self._shut_down or self._reader_is_gone or self._terminated):
                self._exchange(None if self._task is None and not self._waiting else 0.0)
                if self._task is None and self._waiting:
                    self._start(self._waiting.popleft())
                self._tell_waiting()
                if self._task is not None:
                    self._step(self._task)
        finally:
            self._cancel()
            self._engine.close()
        deadline = time.monotonic() + FAREWELL_S
        while self._outbox.is_pending and not self._reader_is_gone and time.monotonic() < deadline:
            self._exchange(deadline - time.monotonic(), reading=False)
        return 128 + signal.SIGTERM if self._terminated else ExitCode.DONE

    def say(self, event: EngineEvent) -> None:
        """Queue an event for the reader."""
        self._outbox.put(event)

    def _note_signals(self) -> None:
        """SIGTERM ends the work in order; INT and HUP belong to a terminal, which this process has none of."""
        for end in (self._wake, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._take_sigterm)
        for number in (signal.SIGINT, signal.SIGHUP):
            # Not SIG_IGN, which the processes that this one starts would inherit.
            signal.signal(number, lambda *_: None)

    def _take_sigterm(self, *_: object) -> None:
        self._terminated = True

    def _exchange(self, timeout_s: float | None, reading: bool = True) -> None:
        """Read requests and send events, after waiting up to `timeout_s` (None: until there is something to do)."""
        readers: list[socket.socket] = [self._wake]
        if reading and not self._outbox.is_congested:
            readers.append(self._connection)
        writers = [self._connection] if self._outbox.is_pending else []
        ready, writable, _ = select.select(readers, writers, [], timeout_s)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                self._wake.recv(READ_BYTES)
        try:
            if self._connection in ready:
                self._read()
            if writable:
                self._outbox.send(self._connection)
        except BlockingIOError:
            pass
        except OSError:
            self._reader_is_gone = True

    def _read(self) -> None:
        data = self._connection.recv(READ_BYTES)
        if not data:
            self._reader_is_gone = True
        before = self._lines.too_long
        for line in self._lines.feed(data):
            try:
                self._take(decode_request(line))
            except ProtocolError as error:
                self.say(Problem(f"the engine was sent a line that is no request and is left out: {error}"))
        if self._lines.too_long > before:
            self.say(Problem(f"the engine was sent a line of more than {MAX_REQUEST_BYTES} bytes, which is left out"))

    def _take(self, request: Request) -> None:
        if self._shut_down:
            return
        if isinstance(request, Shutdown):
            self._shut_down = True
        elif isinstance(request, Cancel):
            self._cancel()
        elif isinstance(request, Export | Preview):
            self._export(request)
        elif isinstance(request, Share):
            if self._engine.is_open:
                self._engine.session.place.share = True
        elif len(self._waiting) >= MAX_WAITING:
            error = f"{MAX_WAITING} commands wait already; try again when some of them are done"
            self.say(TaskEnded(title_of(request), error, ExitCode.USAGE))
        else:
            self._waiting.append(request)

    def _tell_waiting(self) -> None:
        waiting = tuple(title_of(request) for request in self._waiting)
        if waiting != self._told_waiting:
            self._told_waiting = waiting
            self.say(QueueChanged(waiting))

    def _start(self, request: Open | Do) -> None:
        self._title = title_of(request)
        self._task = self._work(request)
        self.say(TaskStarted(self._title))

    def _work(self, request: Open | Do) -> Task:
        if isinstance(request, Open):
            yield from self._engine.open(request.config)
        else:
            self._open_session()
            yield from self._engine.handle(request.command)

    def _open_session(self) -> StudySession:
        if not self._engine.is_open:
            raise UsageError("no study is open; open a workload first")
        return self._engine.session

    def _step(self, task: Task) -> None:
        """Let the task go on to its next tick."""
        try:
            event = next(task)
        except StopIteration:
            self._end(None, ExitCode.DONE)
        except GputuneError as error:
            self._end(str(error), error.exit_code)
        except Exception as error:  # a bug in one command must not cost the study
            self._end(internal_error(error), ExitCode.INTERNAL)
        else:
            if event is not None:
                self._tell(event)

    def _tell(self, event: EngineEvent) -> None:
        if isinstance(event, TrialStarted):
            self._running[event.trial_id] = event
        elif isinstance(event, TrialFinished):
            self._running.pop(event.trial.id, None)
        self.say(event)
        if isinstance(event, StudyOpened):
            session = self._engine.session
            self._outbox.put_stream(lambda: study_trials(session))

    def _end(self, error: str | None, exit_code: int, cancelled: bool = False) -> None:
        """The task is over: tell the trials that ended with it, and itself."""
        self._task = None
        if self._running:
            stored = {trial.id: trial for trial in self._engine.session.trials}
            for started in self._running.values():
                if started.trial_id in stored:
                    self.say(TrialFinished(stored[started.trial_id], started.number, started.total, None))
            self._running.clear()
        self.say(TaskEnded(self._title, error, exit_code, cancelled))
        if self._title == "open" and exit_code != ExitCode.DONE:
            # What was asked for the study that could not be opened must not be done to another one.
            while self._waiting and isinstance(self._waiting[0], Do):
                self._forget(self._waiting.popleft(), "not run, since its study could not be opened")

    def _forget(self, request: Open | Do, why: str | None = None) -> None:
        self.say(TaskEnded(title_of(request), why, CANCELLED, cancelled=True))

    def _cancel(self) -> None:
        """End what runs, and forget what waits."""
        waiting, self._waiting = self._waiting, deque()
        if self._task is not None:
            error = None
            try:
                self._task.close()
            except GputuneError as problem:  # the disk is full, say: the trial is in memory alone
                error = str(problem)
            except Exception as problem:  # whatever it is, the process goes on
                error = internal_error(problem)
            self._end(error, CANCELLED, cancelled=True)
        for request in waiting:
            self._forget(request)

    def _export(self, request: Export | Preview) -> None:
        try:
            session = self._open_session()
            self.say(export_from(session, request) if isinstance(request, Export) else preview_from(session, request))
        except GputuneError as error:
            self.say(Problem(str(error)))
        except Exception as error:  # a bug in one exporter must not cost the study
            self.say(Problem(internal_error(error)))

    def _resync(self) -> Iterator[EngineEvent]:
        if self._engine.is_open:
            yield from study_trials(self._engine.session)
            yield from list(self._running.values())


def title_of(request: Open | Do) -> str:
    """What a request is called in events."""
    if isinstance(request, Open):
        return "open"
    if isinstance(request.command, Search):
        return "search"
    return "a/b" if isinstance(request.command, Compare) else "trial"


def main(arguments: list[str]) -> int:
    """Serve on the descriptors that `EngineClient` has passed."""
    connection_fd, folder_fd = map(int, arguments)
    os.set_inheritable(connection_fd, False)
    faulthandler.enable()
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("gputune-engine")
    server = Server(socket.socket(fileno=connection_fd), Engine())
    try:
        os.fchdir(folder_fd)
    except OSError as error:
        server.say(Problem(f"cannot enter the current folder: {error.strerror}; give full paths"))
    os.close(folder_fd)
    return server.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
