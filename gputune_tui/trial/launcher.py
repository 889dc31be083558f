"""Start a trial process: its settings file, its pipes, its log and the keeper that owns it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gputune_tui.domain.job import (
    CONTROL_VARIABLE,
    EVENTS_PLACE_VARIABLE,
    EVENTS_VARIABLE,
    JOB_VARIABLE,
    RANKS_FOLDER,
    RUN_VARIABLE,
    Job,
)
from gputune_tui.domain.plain import to_plain
from gputune_tui.domain.template import SCRATCH, fill_placeholders, placeholders
from gputune_tui.errors import EnvironmentProblem, StoreWriteError

LOG_CAP_BYTES = 2 << 20
"""A log keeps its first and its last two MiB."""
KEEPER = Path(__file__).with_name("keeper.py")
BOOTSTRAP = Path(__file__).parent.parent / "trainer" / "bootstrap.py"
SCRIPT_HOOKS = Path(__file__).parent.parent / "trainer" / "startup"


class KeeperProcess(Protocol):
    """The process that owns a trial."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def kill(self) -> None:
        """SIGKILL to it."""

    def wait(self, timeout: float | None = None) -> object:
        """Wait until it is gone.

        Raises:
            subprocess.TimeoutExpired: it is still there after `timeout` seconds.
        """


@dataclass
class TrialProcess:
    """The open ends of a launched trial; the supervisor reads and closes them."""

    keeper: KeeperProcess
    events_fd: int
    status_fd: int
    orders_fd: int
    control_fd: int | None
    log: Path
    notes: tuple[str, ...] = ()
    """What is to be known about how it was started."""

    def stop(self, grace_s: float) -> None:
        """TERM to the trial's group now, KILL to its whole tree after the grace."""
        with contextlib.suppress(OSError):
            os.write(self.orders_fd, f"stop {grace_s}\n".encode())

    def close(self) -> None:
        """Close every pipe end: a keeper that still lives takes this as the order to kill."""
        for fd in (self.orders_fd, self.events_fd, self.status_fd, self.control_fd):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)


class Launcher(Protocol):
    """Anything that starts trials."""

    def is_ready(self, job: Job, timeout_s: float) -> bool:
        """Prepare to start `job` and wait up to `timeout_s`; True when `launch` will not have to wait."""

    def launch(self, job: Job, directory: Path) -> TrialProcess:
        """Start `job`; its files go to `directory`."""

    def close(self) -> None:
        """End what was prepared; trials that run are not touched."""


class LocalLauncher:
    """A fresh process per trial on this machine."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment

    def is_ready(self, job: Job, timeout_s: float) -> bool:
        """There is nothing to prepare."""
        return True

    def close(self) -> None:
        """Nothing was prepared."""

    def launch(self, job: Job, directory: Path) -> TrialProcess:
        """Start `job`; its settings file and its log go to `directory`.

        Raises:
            StoreWriteError: the directory cannot be written.
            EnvironmentProblem: no process could be started.
        """
        job_path, log = write_job(job, directory)
        pipes = Pipes(paced=job.paced)
        try:
            keeper = subprocess.Popen(
                keeper_command(pipes, log, trial_command(job, directory)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=trial_environment(job, job_path, pipes, self._environment),
                pass_fds=pipes.childs_ends(),
                start_new_session=True,
            )
        except OSError as error:
            pipes.close()
            raise EnvironmentProblem(f"cannot start a trial process: {error.strerror}; see ulimit -u and -n") from error
        return pipes.into_process(keeper, log)


def write_job(job: Job, directory: Path) -> tuple[Path, Path]:
    """Write the settings file of a trial; returns its path and the one of the log.

    Raises:
        StoreWriteError: the directory cannot be written.
    """
    job_path = directory / "job.json"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if job.runs_command:
            shutil.rmtree(directory / RANKS_FOLDER, ignore_errors=True)
            (directory / RANKS_FOLDER).mkdir(exist_ok=True)
        job_path.write_text(json.dumps(to_plain(job), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreWriteError(
            f"cannot write {job_path}: {error.strerror}; free some space or choose another --study"
        ) from error
    return job_path, directory / "log.txt"


def make_folder(path: Path) -> None:
    """Make a folder for what a command writes.

    Raises:
        StoreWriteError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreWriteError(f"cannot make {path}: {error.strerror}; choose another --study") from error


class Pipes:
    """The pipes of one trial, as (read end, write end)."""

    def __init__(self, paced: bool) -> None:
        self.events = os.pipe()
        self.status = os.pipe()
        self.orders = os.pipe()
        self.control = os.pipe() if paced else None

    def childs_ends(self) -> tuple[int, ...]:
        """The ends that belong to the keeper and the trial."""
        ends = (self.events[1], self.status[1], self.orders[0])
        return (*ends, self.control[0]) if self.control else ends

    def into_process(self, keeper: KeeperProcess, log: Path, notes: tuple[str, ...] = ()) -> TrialProcess:
        """Close the ends that the keeper has taken over and hand out the others."""
        for fd in self.childs_ends():
            os.close(fd)
        os.set_blocking(self.events[0], False)
        os.set_blocking(self.status[0], False)
        control = self.control[1] if self.control else None
        return TrialProcess(keeper, self.events[0], self.status[0], self.orders[1], control, log, notes)

    def close(self) -> None:
        """Close both ends of all."""
        for fd in (*self.events, *self.status, *self.orders, *(self.control or ())):
            with contextlib.suppress(OSError):
                os.close(fd)


def keeper_command(pipes: Pipes, log: Path, command: Sequence[str]) -> list[str]:
    """The command line of the keeper (its module docstring says what each part is)."""
    where = [str(pipes.orders[0]), str(pipes.status[1]), str(log), str(LOG_CAP_BYTES)]
    return [sys.executable, "-I", "-S", str(KEEPER), *where, "--", *command]


def trial_command(job: Job, directory: Path) -> list[str]:
    """The command line of the trial: our entry point under the chosen interpreter, or the user's own command.

    Raises:
        StoreWriteError: the command wants a folder for what it writes, and none can be made.
    """
    if job.runs_command:
        assert job.settings is not None
        scratch = directory.absolute() / SCRATCH
        if placeholders(job.workload.command, (SCRATCH,)):
            make_folder(scratch)
        return fill_placeholders(job.workload, job.settings, job.global_batch_size, str(scratch))
    interpreter = job.settings.python if job.settings and job.settings.python else sys.executable
    return [interpreter, str(BOOTSTRAP)]


def trial_environment(job: Job, job_path: Path, pipes: Pipes, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a trial: the user's own, plus where its orders are and how devices are counted."""
    env = process_environment(job, base)
    env[JOB_VARIABLE] = str(job_path.absolute())
    env[EVENTS_VARIABLE] = str(pipes.events[1])
    if job.runs_command:
        # Opened for writing, our own end of a pipe is the other one. torchrun and the like close what they inherit.
        read_end = pipes.events[0]
        env[EVENTS_PLACE_VARIABLE] = f"{os.fstat(read_end).st_ino} /proc/{os.getpid()}/fd/{read_end}"
    if pipes.control:
        env[CONTROL_VARIABLE] = str(pipes.control[0])
    return env


def process_environment(job: Job, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The part of a trial's environment that libraries read when they are imported; the same for like jobs."""
    env = users_environment(base)
    env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if job.device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
    elif job.visible_device is not None:
        env["CUDA_VISIBLE_DEVICES"] = job.visible_device
    if job.threads:
        env["OMP_NUM_THREADS"] = str(job.threads)
        env["MKL_NUM_THREADS"] = str(job.threads)
    return with_script_hooks(env) if job.runs_command else env


def users_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what this program has told a process that it started; None is this process's own."""
    ours = (JOB_VARIABLE, RUN_VARIABLE, EVENTS_VARIABLE, EVENTS_PLACE_VARIABLE, CONTROL_VARIABLE)
    return {name: value for name, value in (os.environ if base is None else base).items() if name not in ours}


def with_script_hooks(environment: Mapping[str, str]) -> dict[str, str]:
    """The same with our start-up hook found by every Python process."""
    rest = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": os.pathsep.join([str(SCRIPT_HOOKS), rest] if rest else [str(SCRIPT_HOOKS)])}
