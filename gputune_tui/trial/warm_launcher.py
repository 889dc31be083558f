"""Where it is decided how a trial starts: forked from a warm host, or as a fresh process."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gputune_tui.domain.job import Job
from gputune_tui.trial.launcher import LocalLauncher, Pipes, TrialProcess, process_environment, write_job
from gputune_tui.trial.warm_host import START_S, HostFailed, WarmHost

MAX_FAILURES = 2
"""So many hosts in a row may be lost; then trials are started fresh."""
POLL_S = 0.1


class WarmLauncher:
    """Forks trials from a warm host where that is the same as a fresh start; where it fails, starts them fresh.

    A fresh process is what these need: another interpreter (`--python`), and the user's own command. All others differ
    in nothing that is read when torch is imported, as long as the host has their environment; for another environment
    the host is replaced. A host that dies or is killed costs no running trial, which goes on under its keeper.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._fresh = LocalLauncher(environment)
        self._host: WarmHost | None = None
        self._failures = 0
        self._given_up: str | None = None

    @property
    def host_pid(self) -> int | None:
        """Process id of the host; None while there is none."""
        return self._host.pid if self._host else None

    def is_ready(self, job: Job, timeout_s: float) -> bool:
        """Start the host that `job` needs, or wait up to `timeout_s` for it."""
        if not may_be_forked(job) or self._given_up is not None:
            return True
        try:
            return self._wait_for(job, timeout_s) is not None
        except HostFailed as failure:
            self._lose_host(failure)
            return self._given_up is not None

    def launch(self, job: Job, directory: Path) -> TrialProcess:
        """Start `job`; its settings file and its log go to `directory`. Waits for the host where it is not ready.

        Raises:
            StoreWriteError: the directory cannot be written.
            EnvironmentProblem: no process could be started.
        """
        if not may_be_forked(job):
            return self._fresh.launch(job, directory)
        try:
            return self._fork(job, directory)
        except HostFailed as failure:
            why = str(failure)
            if self._given_up is None:
                self._lose_host(failure)
        note = f"started as a fresh process, since the one that trials are forked from {why}"
        return replace(self._fresh.launch(job, directory), notes=(note,))

    def close(self) -> None:
        """End the host."""
        if self._host is not None:
            self._host.close()
            self._host = None

    def _fork(self, job: Job, directory: Path) -> TrialProcess:
        host = None
        while host is None:
            if self._given_up is not None:
                raise HostFailed(self._given_up)
            try:
                host = self._wait_for(job, POLL_S)
            except HostFailed as failure:
                self._lose_host(failure)
        job_path, log = write_job(job, directory)
        pipes = Pipes(paced=job.paced)
        try:
            keeper = host.fork(job_path, log, pipes)
        except BaseException:
            pipes.close()
            raise
        self._failures = 0
        return pipes.into_process(keeper, log)

    def _wait_for(self, job: Job, timeout_s: float) -> WarmHost | None:
        """The host that can fork `job` now; None where it is not ready after `timeout_s`."""
        environment = process_environment(job, self._environment)
        if self._host is not None and not self._host.serves(environment):
            self.close()
        if self._host is None:
            self._host = WarmHost(environment)
        host = self._host
        host.poll(0.0 if job.kind in host.ready else timeout_s)
        if job.kind in host.ready:
            return host
        if time.monotonic() - host.started > START_S:
            raise HostFailed(f"was not ready after {START_S:.0f} s", for_good=True)
        return None

    def _lose_host(self, failure: HostFailed) -> None:
        self._failures += 1
        if failure.for_good or self._failures >= MAX_FAILURES:
            self._given_up = str(failure)
        self.close()


def may_be_forked(job: Job) -> bool:
    """Whether a trial forked from a process of this interpreter can be what a fresh one would be."""
    return not job.workload.command and not (job.settings and job.settings.python)
