"""The keeper: owns one trial and every process under it, and ends them all when told or left alone.

Run as a script (`python -I -S keeper.py ORDERS_FD STATUS_FD LOG_PATH LOG_CAP_BYTES -- COMMAND ...`, or at the end
`--adopt PID OUTPUT_FD` where the process has forked its trial before it became the keeper); standard library only, so
that it starts in about 20 ms. It is a process of its own because no handler survives SIGKILL: when its parent dies, the
pipe ORDERS_FD closes and the keeper kills the tree. It is the subreaper, so that processes which moved into sessions of
their own, or lost their parent, are still found under it.

Orders (lines on ORDERS_FD): `stop SECONDS`: TERM to the trial's process group, KILL to the tree after that grace.
Status (JSON lines on STATUS_FD): `{"pid": n}`, `{"exit": wait status}`, at last `{"gone": [pids that would not die]}`.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
READ_BYTES = 1 << 16
KILL_PATIENCE_S = 10.0
"""How long to wait for killed processes to vanish; only a task in an uninterruptible call takes longer."""
SWEEP_LIMIT = 4096
OOM_SCORE_ADJ = 500
"""Of 1000: where memory runs out the kernel ends a trial before the tuner, a shell or a neighbour of that size."""
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def prctl(option: int, value: int) -> None:
    """Linux prctl; failure is ignored, since the pipe and the tree walk do not depend on it."""
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """All living processes under `root`, parents first; zombies left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as stat:
                # The command name may hold spaces and brackets; what follows its last bracket is fixed.
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(entry))
    found: list[int] = []
    level = [root]
    while level:
        level = [child for pid in level for child in children.get(pid, [])]
        found += level
    return found


class CappedLog:
    """A log file that holds the first and the last part of a stream, never more than twice `cap_bytes`."""

    def __init__(self, path: str, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes
        self._written_bytes = 0
        self._dropped_bytes = 0
        self._tail = bytearray()
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def feed(self, data: bytes) -> None:
        room = self._cap_bytes - self._written_bytes
        if room > 0:
            self._write(data[:room])
            self._written_bytes += min(room, len(data))
            data = data[room:]
        if data:
            self._tail += data
            excess = len(self._tail) - self._cap_bytes
            if excess > self._cap_bytes // 4:
                del self._tail[:excess]
                self._dropped_bytes += excess

    def close(self) -> None:
        excess = max(0, len(self._tail) - self._cap_bytes)
        if self._dropped_bytes + excess:
            self._write(b"\n... %d bytes left out ...\n" % (self._dropped_bytes + excess))
        self._write(bytes(self._tail[excess:]))
        if self._fd >= 0:
            os.close(self._fd)

    def _write(self, data: bytes) -> None:
        # A full disk costs the log, not the trial: its results do not go this way.
        with contextlib.suppress(OSError):
            while data and self._fd >= 0:
                data = data[os.write(self._fd, data) :]


def become_trial(keeper_pid: int, output_fd: int) -> None:
    """In the forked child: a process group of its own, empty input, output to the pipe, default signals.

    The child dies with its keeper: the keeper's only thread is the one that forks, and lives as long as the keeper.
    """
    os.setpgid(0, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper_pid:
        os._exit(127)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output_fd, 1), (output_fd, 2)):
        os.dup2(source, target)
    os.close(null)
    signal.set_wakeup_fd(-1)
    offer_to_the_kernel()
    for number in (*ENDING_SIGNALS, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


def offer_to_the_kernel() -> None:
    """Be ended before others where memory runs out; a higher offer that the user made stays."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < OOM_SCORE_ADJ:
            file.seek(0)
            file.write(str(OOM_SCORE_ADJ))


def fork_trial(body: Callable[[int], object]) -> tuple[int, int]:
    """Fork a child that runs `body(read end of its output)` and ends; returns its pid and that read end."""
    keeper_pid = os.getpid()
    log_read, log_write = os.pipe2(os.O_CLOEXEC)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    pid = os.fork()
    if pid == 0:
        try:
            become_trial(keeper_pid, log_write)
            body(log_read)
        finally:
            os._exit(127)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    os.close(log_write)
    return pid, log_read


class Keeper:
    """Starts the command, pumps its output, obeys orders, and leaves nothing running."""

    def __init__(self, orders_fd: int, status_fd: int, log: CappedLog) -> None:
        self._orders_fd = orders_fd
        self._status_fd = status_fd
        self._log = log
        self._kill_at: float | None = None
        self._seen_pids: set[int] = set()
        self._orders = b""

    def run(self, start: Callable[[], tuple[int, int]]) -> None:
        """Keep the trial that `start` starts or knows of; it gives its pid and the pipe with its output."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in ENDING_SIGNALS:
            signal.signal(number, lambda *_: self._hasten())
        self._pid, log_read = start()
        # Blocked since before the fork: a signal in between would be taken by the handler that the child replaces.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
        self._seen_pids.add(self._pid)
        self._report({"pid": self._pid})
        readers = [self._orders_fd, log_read, wake_read]
        while (status := self._reap()) is None:
            timeout = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            ready = select.select(readers, [], [], timeout)[0]
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, READ_BYTES)
            if log_read in ready and not self._pump(log_read):
                readers.remove(log_read)
            if self._orders_fd in ready and not self._obey():
                readers.remove(self._orders_fd)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_tree()
                self._kill_at = time.monotonic() + 1.0
        self._report({"exit": status})
        left = self._clear()
        os.set_blocking(log_read, False)
        with contextlib.suppress(BlockingIOError):
            while self._pump(log_read):
                pass
        self._log.close()
        self._sweep_shared_memory()
        self._report({"gone": left})

    def _hasten(self) -> None:
        """A signal to the keeper itself ends the trial: it has no other purpose."""
        self._kill_at = time.monotonic()

    def _pump(self, fd: int) -> bool:
        data = os.read(fd, READ_BYTES)
        self._log.feed(data)
        return bool(data)

    def _obey(self) -> bool:
        """Read orders; False at end of file, which means that the parent is gone."""
        data = os.read(self._orders_fd, READ_BYTES)
        if not data:
            self._kill_at = time.monotonic()
            return False
        self._orders += data
        *lines, self._orders = self._orders.split(b"\n")
        for line in lines:
            word, _, grace = line.partition(b" ")
            if word == b"stop" and self._kill_at is None:
                with contextlib.suppress(OSError):
                    os.killpg(self._pid, signal.SIGTERM)
                    os.killpg(self._pid, signal.SIGCONT)  # one that stopped itself could not answer
                self._kill_at = time.monotonic() + float(grace or b"0")
        return True

    def _reap(self) -> int | None:
        """Reap whatever ended; the trial's own wait status once it did."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 0
            if pid == 0:
                return None
            self._seen_pids.add(pid)
            if pid == self._pid:
                return status

    def _kill_tree(self) -> list[int]:
        alive = descendants(os.getpid())
        self._seen_pids.update(alive)
        for pid in alive:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return alive

    def _clear(self) -> list[int]:
        """Kill and reap until nothing is under the keeper; the pids that would not die."""
        deadline = time.monotonic() + KILL_PATIENCE_S
        while True:
            alive = self._kill_tree()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not alive or time.monotonic() > deadline:
                return alive
            time.sleep(0.005)

    def _sweep_shared_memory(self) -> None:
        """Remove torch's shared memory files of processes that are gone (left behind by a kill)."""
        for pid in list(self._seen_pids)[:SWEEP_LIMIT]:
            for path in glob.glob(f"/dev/shm/torch_{pid}_*"):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _report(self, status: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._status_fd, json.dumps(status).encode() + b"\n")


def execute(command: list[str]) -> None:
    """Become the command; returns only where that cannot be, which the output then says."""
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot start {command[0]}: {error.strerror}\n".encode())


def main(arguments: list[str]) -> None:
    """Keep one trial until nothing of it is left."""
    orders_fd, status_fd, log_path, log_cap, how, *rest = arguments
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    for fd in (orders_fd, status_fd):
        os.set_inheritable(int(fd), False)
    keeper = Keeper(int(orders_fd), int(status_fd), CappedLog(log_path, int(log_cap)))
    if how == "--adopt":
        pid, output_fd = map(int, rest)
        os.set_inheritable(output_fd, False)
        keeper.run(lambda: (pid, output_fd))
    else:
        keeper.run(lambda: fork_trial(lambda _: execute(rest)))


if __name__ == "__main__":
    main(sys.argv[1:])
