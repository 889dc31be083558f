"""The warm host: a process that has imported torch and never runs an operator, from which trials are forked.

Run by `python bootstrap.py --host SOCKET_FD KEEPER_PATH`; its client is `trial/warm_host.py`. Each message on the
socket (SEQPACKET) is one JSON object. The host says `{"ready": [job kinds], "torch": path}` as its imports go on; it
is told `{"job": path, "log": path, "log_cap_bytes": n}` with descriptors (orders, status, events and, for a paced
trial, control) and answers `{"keeper": pid}`, `{"failed": why}` for this time or `{"refused": why}` for good. It ends
when the socket closes.

A child that is forked after an operator has run hangs in its first one, since the threads of the OpenMP pool are not
there; one forked after CUDA was initialised cannot use it. So the host makes sure before each fork that it is a single
thread. The forked process forks the trial and then becomes the keeper by exec, so that both are what they are in a
fresh launch.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import traceback
import types
from pathlib import Path
from typing import Any, NoReturn

from gputune_tui.domain.job import CONTROL_VARIABLE, EVENTS_VARIABLE, JOB_VARIABLE
from gputune_tui.trainer.libraries import load_libraries
from gputune_tui.trainer.mapped import mapped_windows, touch

ROOM_VARIABLE = "GPUTUNE_ROOM"
"""Environment variable of the host: room in which a trial writes its own job's path, where /proc shows it."""
MESSAGE_BYTES = 1 << 16
MAX_FDS = 4
INSPECTION_S = 0.2
"""How long the further imports wait for the request that the client makes as soon as a workload can be inspected."""
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With it torch asks NVML whether there is a GPU; without it the question initialises CUDA."""


class Refused(Exception):
    """A child of this process might hang."""


def main(arguments: list[str]) -> NoReturn:
    """Serve until the client is gone."""
    socket_fd, keeper_path = arguments
    os.environ.pop(ROOM_VARIABLE, None)  # the memory that held it stays
    host = Host(socket.socket(fileno=int(socket_fd)), keeper_path)
    try:
        host.run()
    except Refused as refusal:
        host.say({"refused": str(refusal)})
    except BrokenPipeError:
        pass
    os._exit(0)


class Host:
    """Imports in two stages, so that a workload can be inspected while the rest is still being imported."""

    def __init__(self, connection: socket.socket, keeper_path: str) -> None:
        os.set_inheritable(connection.fileno(), False)
        self._socket = connection
        self._keeper_path = keeper_path
        self._keeper = _load(keeper_path)
        self._ready: list[str] = []
        self._libraries_fds: set[int] = set()
        self._windows: list[int] = []
        self._nvml_check = os.environ.get(NVML_CHECK)

    def run(self) -> None:
        """Import, then fork a trial for each request.

        Raises:
            Refused: the imports have left the process in a state that must not be forked.
            BrokenPipeError: the client is gone.
        """
        before = _open_fds()
        os.environ[NVML_CHECK] = "1"
        torch = importlib.import_module("torch")
        importlib.import_module("gputune_tui.trainer.inspection")
        self._announce("inspect", before, torch)
        if self._serve(INSPECTION_S):
            importlib.import_module("gputune_tui.trainer.session")
            load_libraries()
            self._announce("trial", before, torch)
            self._serve(None)

    def say(self, message: dict[str, Any]) -> None:
        """Send one message."""
        self._socket.send(json.dumps(message).encode())

    def _announce(self, kind: str, before: set[int], torch: types.ModuleType) -> None:
        self._rehearse(torch)
        self._libraries_fds = _open_fds() - before
        if kind == "trial":  # of which alone the memory is measured
            self._windows = _windows()
        # What is frozen is not visited by the collector, so that its pages stay shared with the children.
        gc.freeze()
        self._ready.append(kind)
        self.say({"ready": self._ready, "torch": torch.__file__})

    def _rehearse(self, torch: types.ModuleType) -> None:
        """Fork a child that only looks whether CUDA would work in it.

        OpenBLAS, which numpy brings, ends its idle threads when its process forks, and each process starts them again
        when it needs them: after this fork they are gone from the host.
        """
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if pid == 0:
            os._exit(bool(torch.cuda._is_in_bad_fork()))
        status = os.waitpid(pid, 0)[1]
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        # Keepers are watched by their pipes; ignored like this they leave no zombie.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        if status != 0:
            raise Refused("has initialised CUDA")
        _check_single(torch)

    def _serve(self, patience_s: float | None) -> bool:
        """Answer requests until none has come for `patience_s`; False when the client is gone."""
        while select.select([self._socket], [], [], patience_s)[0]:
            data, fds, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, MAX_FDS, socket.MSG_CMSG_CLOEXEC)
            if not data:
                return False
            answer = self._launch(json.loads(data), fds)
            for fd in fds:
                os.close(fd)
            self.say(answer)
        return True

    def _launch(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        try:
            _check_single(sys.modules["torch"])
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
        except Refused as refusal:
            return {"refused": str(refusal)}
        except OSError as error:
            return {"failed": f"could not fork ({error.strerror})"}
        if pid == 0:
            try:
                self._become_keeper(request, fds)
            finally:
                os._exit(127)
        return {"keeper": pid}

    def _become_keeper(self, request: dict[str, Any], fds: list[int]) -> None:
        orders, status, events, *control = fds
        os.close(self._socket.detach())
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._keeper.prctl(self._keeper.PR_SET_CHILD_SUBREAPER, 1)
        if self._nvml_check is None:
            del os.environ[NVML_CHECK]
        else:
            os.environ[NVML_CHECK] = self._nvml_check
        os.environ[JOB_VARIABLE] = request["job"]
        os.environ[EVENTS_VARIABLE] = str(events)
        if control:
            os.environ[CONTROL_VARIABLE] = str(control[0])
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        pid, output = self._keeper.fork_trial(lambda _output: self._become_trial(request["job"], [events, *control]))
        for fd in (*fds, output):
            os.set_inheritable(fd, True)
        where = [str(orders), str(status), request["log"], str(request["log_cap_bytes"])]
        command = [sys.executable, "-I", "-S", self._keeper_path, *where, "--adopt", str(pid), str(output)]
        os.execv(sys.executable, command)

    def _become_trial(self, job_path: str, fds: list[int]) -> None:
        """What a fresh process would be at the same point, then the trial itself."""
        try:
            for fd in _open_fds() - {0, 1, 2, *fds} - self._libraries_fds:
                with contextlib.suppress(OSError):
                    os.close(fd)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            _rename(job_path)
            del sys.argv[1:], sys.orig_argv[2:]
            gc.unfreeze()
            importlib.invalidate_caches()
            if (numpy_random := sys.modules.get("numpy.random")) is not None:
                numpy_random.seed()
            touch(self._windows)
            from gputune_tui.trainer.main import main as run_job

            run_job()
        except BaseException:  # nothing may return into the host's loop
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)


def _load(path: str) -> Any:
    """The keeper's module, a script of the other side, which this side may not import by name."""
    spec = importlib.util.spec_from_file_location("gputune_keeper", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _windows() -> list[int]:
    try:
        return mapped_windows()
    except OSError as error:
        raise Refused(f"cannot read /proc/self/pagemap ({error.strerror})") from error


def _open_fds() -> set[int]:
    listed = os.listdir("/proc/self/fd")
    # The one that the listing itself took is closed again.
    return {int(name) for name in listed if os.path.lexists(f"/proc/self/fd/{name}")}


def _check_single(torch: types.ModuleType) -> None:
    tasks = len(os.listdir("/proc/self/task"))
    if tasks != 1:
        raise Refused(f"has {tasks} threads")
    if torch.cuda.is_initialized():
        raise Refused("has initialised CUDA")


def _rename(job_path: str) -> None:
    """Show the trial's job and command line in /proc, where a process that was not started by exec has its parent's.

    Who looks for what a dead keeper has left finds it by its job.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        # Fields 48 to 50 of proc(5) stat; what follows the last bracket begins with field 3.
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        args_at, env_at = int(fields[45]), int(fields[47])
        arguments, environment = Path("/proc/self/cmdline").read_bytes(), Path("/proc/self/environ").read_bytes()
        start = environment.index(f"{ROOM_VARIABLE}=".encode())
        room = environment.index(b"\0", start) - start
        entry = os.fsencode(f"{JOB_VARIABLE}={job_path}")
        if args_at and env_at and len(entry) <= room:
            ctypes.memmove(env_at + start, entry.ljust(room, b"\0"), room)
            own = b"\0".join(arguments.split(b"\0")[:2])
            ctypes.memmove(args_at, own.ljust(len(arguments), b"\0"), len(arguments))
