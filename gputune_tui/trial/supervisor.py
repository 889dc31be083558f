"""Watch one trial from launch to its last process: read events, hold deadlines, stop it, say how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gputune_tui.domain.data_reads import DataReads
from gputune_tui.domain.protocol import (
    MAX_LINE_BYTES,
    BlockDone,
    DataRead,
    Done,
    Error,
    Event,
    Hello,
    Inspected,
    Memory,
    Note,
    Order,
    Phase,
    Stopped,
    decode,
    encode_order,
)
from gputune_tui.domain.protocol import Guard as GuardEvent
from gputune_tui.domain.protocol import Warmup as WarmupEvent
from gputune_tui.domain.trial import Block, Failure, GuardRecord, Launch, MemoryPeaks, PhasePeak, TrialState
from gputune_tui.errors import ProtocolError
from gputune_tui.trial.host_memory import HostMemoryWatch, TreeMemory
from gputune_tui.trial.launcher import TrialProcess
from gputune_tui.trial.outcome import Ending, StopCause, decide

READ_BYTES = 1 << 16
GRACE_S = 3.0
"""Between TERM and KILL (trial_engine.md section 9)."""
LEAVE_S = 10.0
"""How long a trial that reported "done" may take to leave by itself."""
STUCK_S = 20.0
"""A keeper that has not answered this long after its grace is killed itself."""
ORPHANS_S = 5.0
"""How long the processes of a lost keeper are looked for."""


@dataclass(frozen=True)
class Limits:
    """Until when a trial may go on."""

    stall_s: float = 120.0
    """No event for this long."""
    total_s: float | None = None
    """Wall time from launch."""
    host_bytes: int | None = None
    """Host memory of the whole process tree."""


class EventReader:
    """Splits a pipe into lines and lines into events; what is not an event is counted, never obeyed."""

    def __init__(self) -> None:
        self._rest = b""
        self.bad_lines = 0

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
            self.bad_lines += 1
        events = []
        for line in lines:
            try:
                events.append(decode(line))
            except ProtocolError:
                self.bad_lines += 1
        return events


class Observations:
    """What the events of one launch add up to."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.step_times_s: list[float] = []
        self.warmup_steps = 0
        self.main_pid: int | None = None
        self.host_memory = HostMemoryWatch()
        self.data: DataReads | None = None
        self._own_memory = MemoryPeaks()
        self._phase_peaks: dict[str, int] = {}
        self.fixed_overhead_bytes: int | None = None
        self.guard: GuardRecord | None = None
        self.notes: list[str] = []
        self.phase = "start"
        self.done: Done | None = None
        self.error: Error | None = None
        self.stopped: Stopped | None = None
        self.inspected: Inspected | None = None

    def take(self, event: Event) -> None:
        """Add one event."""
        if isinstance(event, BlockDone):
            self.blocks.append(event.block)
            self.step_times_s += event.step_times_s
        elif isinstance(event, Phase):
            self.phase = event.name
        elif isinstance(event, Memory):
            self._own_memory = event.peaks
            if event.peaks.device_peak_bytes is not None:
                self._phase_peaks[self.phase] = event.peaks.device_peak_bytes
            self.fixed_overhead_bytes = event.fixed_overhead_bytes or self.fixed_overhead_bytes
        elif isinstance(event, WarmupEvent):
            self.warmup_steps = event.steps
            if not event.settled:
                self.notes.append("step times had not settled when the warm-up ended")
        elif isinstance(event, GuardEvent):
            self.guard = event.record
        elif isinstance(event, DataRead):
            self.data = event.record
        elif isinstance(event, Hello):
            self.main_pid = event.pid
        elif isinstance(event, Note):
            if event.text not in self.notes:
                self.notes.append(event.text)
        elif isinstance(event, Done):
            self.done = event
        elif isinstance(event, Error):
            self.error = self.error or event
        elif isinstance(event, Stopped):
            self.stopped = event
        elif isinstance(event, Inspected):
            self.inspected = event

    @property
    def memory(self) -> MemoryPeaks:
        """The peaks that the trial told, and of the host's memory what was seen of its whole process tree."""
        return replace(self._own_memory, host_peak_bytes=self.host_memory.peak_bytes(self._own_memory.host_peak_bytes))

    def launch(self) -> Launch:
        """The launch as it is stored."""
        return Launch(
            blocks=tuple(self.blocks),
            step_times_s=tuple(self.step_times_s),
            warmup_steps=self.warmup_steps,
            memory=self.memory,
            breakdown=self.done.breakdown if self.done else None,
            guard=self.guard,
            notes=tuple(self.notes),
            phase_peaks=tuple(PhasePeak(name, peak) for name, peak in self._phase_peaks.items()),
            data=self.data,
        )


class TrialRun:
    """One launched trial. Call `poll` until `finished`; `close` ends it at any time and leaves nothing."""

    def __init__(
        self,
        process: TrialProcess,
        limits: Limits,
        is_command: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seen = Observations()
        self.seen.notes += process.notes
        self.finished = False
        self.state = TrialState.RUNNING
        self.failure: Failure | None = None
        self.left_running: tuple[int, ...] = ()
        """Processes that even SIGKILL did not end (a driver call in the kernel, say)."""
        self._process = process
        self._limits = limits
        self._is_command = is_command
        self._clock = clock
        self._events = EventReader()
        self._status_rest = b""
        self._wait_status: int | None = None
        self._gone = False
        self._keeper_lost = False
        self._started = self._last_progress = clock()
        self._stop_cause: StopCause | None = None
        self._stop_at: float | None = None
        self._stop_limit_s: float | None = None
        self._oom_kills_before = oom_kills()
        self._over_host_budget: TreeMemory | None = None
        self.pid: int | None = None

    @property
    def elapsed_s(self) -> float:
        """Wall time since launch."""
        return self._clock() - self._started

    def order(self, order: Order) -> None:
        """Send an order to a paced trial; one that is gone does not take it, which its outcome will tell."""
        if self._process.control_fd is not None:
            # An order to a trial that waited for its turn starts its clock anew.
            self._last_progress = self._clock()
            with contextlib.suppress(OSError):
                os.write(self._process.control_fd, encode_order(order))

    def stop(self, cause: StopCause = StopCause.USER, limit_s: float | None = None) -> None:
        """Begin to end the trial; `poll` goes on until its last process is gone."""
        if self._stop_cause is None and not self.finished:
            self._stop_cause, self._stop_limit_s, self._stop_at = cause, limit_s, self._clock()
            self._process.stop(GRACE_S)

    def poll(self, timeout_s: float = 0.1) -> list[Event]:
        """Wait up to `timeout_s` for news; hold the limits; return the events that came."""
        if self.finished:
            return []
        fds = [self._process.status_fd, self._process.events_fd]
        ready = select.select([fd for fd in fds if not (fd == fds[0] and self._keeper_lost)], [], [], timeout_s)[0]
        events = self._read_events() if fds[1] in ready else []
        if fds[0] in ready:
            self._read_status()
        if self._gone or self._keeper_lost:
            # The keeper is the last to hold the pipe: what is in it now is all there will be.
            events += self._read_events()
        for event in events:
            self.seen.take(event)
        if events:
            self._last_progress = self._clock()
        self._watch_host_memory()
        self._hold_limits()
        if self._gone or self._keeper_lost:
            self._finish()
        return events

    def close(self) -> None:
        """End the trial now, whatever it does, and wait until its processes are gone."""
        self.stop(StopCause.USER)
        deadline = self._clock() + GRACE_S + STUCK_S
        while not self.finished and self._clock() < deadline:
            self.poll(0.05)
        if not self.finished:
            self._process.keeper.kill()
            self._keeper_lost = True
            self._finish()

    def _read_events(self) -> list[Event]:
        events: list[Event] = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._process.events_fd, READ_BYTES):
                events += self._events.feed(data)
        return events

    def _read_status(self) -> None:
        try:
            data = os.read(self._process.status_fd, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._keeper_lost = not self._gone
            return
        *lines, self._status_rest = (self._status_rest + data).split(b"\n")
        for line in lines:
            status = json.loads(line)
            self.pid = status.get("pid", self.pid)
            self._wait_status = status.get("exit", self._wait_status)
            if "gone" in status:
                self._gone = True
                self.left_running = tuple(status["gone"])

    def _watch_host_memory(self) -> None:
        # After the measurement the trial draws whole batches in its main process, which no training does.
        if self.pid is None or self._gone or self.seen.phase == "noise":
            return
        tree, budget = self.seen.host_memory.look(self.pid, self.seen.main_pid or self.pid), self._limits.host_bytes
        if tree is not None and budget is not None and tree.total_bytes > budget:
            self._over_host_budget = self._over_host_budget or tree
            self.stop(StopCause.HOST_BUDGET)

    def _hold_limits(self) -> None:
        now = self._clock()
        if self._stop_at is not None:
            if now - self._stop_at > GRACE_S + STUCK_S:
                self._process.keeper.kill()
            return
        if self.seen.done is not None or self.seen.error is not None:
            if now - self._last_progress > LEAVE_S:
                self.stop(StopCause.FINISHED)
        elif self._limits.total_s is not None and now - self._started > self._limits.total_s:
            self.stop(StopCause.DEADLINE, self._limits.total_s)
        elif self.seen.phase != "ready" and now - self._last_progress > self._limits.stall_s:
            self.stop(StopCause.STALL, self._limits.stall_s)

    def _finish(self) -> None:
        self.finished = True
        self._process.close()
        with contextlib.suppress(Exception):  # a keeper in an uninterruptible call cannot be waited for
            self._process.keeper.wait(timeout=STUCK_S)
        if self._keeper_lost:
            kill_orphans(self.pid)
        self.state, self.failure = decide(
            Ending(
                wait_status=self._wait_status,
                done=self.seen.done is not None,
                error=self.seen.error,
                stopped=self.seen.stopped,
                stop_cause=self._stop_cause,
                limit_s=self._stop_limit_s,
                phase=self.seen.phase,
                host_oom_kills=oom_kills() - self._oom_kills_before,
                log_tail=last_line(self._process.log),
                is_command=self._is_command,
                host_bytes=tree.total_bytes if (tree := self._over_host_budget) else None,
                host_budget_bytes=self._limits.host_bytes,
                other_processes=tree.others if tree else 0,
            ),
            str(self._process.log),
        )


def oom_kills() -> int:
    """Processes that the kernel's out-of-memory killer ended since boot (all cgroups); 0 where unknown."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat") as vmstat:
        for line in vmstat:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def kill_orphans(leader: int | None) -> None:
    """Kill what a lost keeper left: the trial's group, and what fell to this process as its subreaper.

    Again and again until nothing is found: a process falls to the subreaper only when its parent has died.
    """
    if leader is None:
        return
    deadline = time.monotonic() + ORPHANS_S
    found = True
    while found and time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-leader, os.WNOHANG)[0]:
                pass
        # Children of the trial that moved into groups of their own are found by the job they carry.
        orphans = orphans_of_trials()
        found = bool(orphans)
        for pid in orphans:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        with contextlib.suppress(OSError):
            os.killpg(leader, signal.SIGKILL)
            found = True
        time.sleep(0.01)


def orphans_of_trials() -> Sequence[int]:
    """Own children that carry a trial's job in their environment and have no keeper above them."""
    from gputune_tui.domain.job import JOB_VARIABLE

    marker = f"{JOB_VARIABLE}=".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
            environment = (entry / "environ").read_bytes()
            is_keeper = b"keeper.py" in (entry / "cmdline").read_bytes()
            if parent == os.getpid() and marker in environment and not is_keeper:
                found.append(int(entry.name))
    return found


def become_subreaper() -> None:
    """Adopt orphans of keepers that were killed, so that `kill_orphans` finds them."""
    from gputune_tui.trial.keeper import PR_SET_CHILD_SUBREAPER, prctl

    prctl(PR_SET_CHILD_SUBREAPER, 1)


def last_line(log: Path, limit: int = 200) -> str:
    """The last non-empty line of a log without control characters, for display."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line for part in text.split("\n") if (line := part.rstrip("\r").rpartition("\r")[2].strip())]
    return "".join(c for c in lines[-1] if c.isprintable())[:limit] if lines else ""
