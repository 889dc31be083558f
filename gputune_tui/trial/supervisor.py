"""Watch one trial from launch to its last process: read events, hold deadlines, stop it, say how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gputune_tui.domain.protocol import AFTER_MEASURING, Error, Event, Order, encode_order
from gputune_tui.domain.trial import Failure, Launch, TrialState
from gputune_tui.trial.host_memory import TreeMemory
from gputune_tui.trial.last_words import last_words
from gputune_tui.trial.launcher import TrialProcess
from gputune_tui.trial.memory_mark import MemoryMark, OverMark
from gputune_tui.trial.observations import EventReader, Observations
from gputune_tui.trial.orphans import kill_orphans
from gputune_tui.trial.outcome import Ending, StopCause, decide
from gputune_tui.trial.watch import Watch

READ_BYTES = 1 << 16
GRACE_S = 3.0
"""Between TERM and KILL (trial_engine.md section 9)."""
MEMORY_GRACE_S = 0.3
"""The same for a trial over its memory mark: what it goes on taking may be somebody else's."""
LEAVE_S = 10.0
"""How long a trial that reported "done" may take to leave by itself."""
STUCK_S = 20.0
"""A keeper that has not answered this long after its grace is killed itself."""


@dataclass(frozen=True)
class Limits:
    """Until when a trial may go on."""

    stall_s: float = 120.0
    """No event for this long."""
    total_s: float | None = None
    """Wall time from launch."""
    budget_bytes: int | None = None
    """Memory of its device; a trial that takes more outside its allocator's cap is ended."""
    host_bytes: int | None = None
    """Host memory of the whole process tree."""


class TrialRun:
    """One launched trial. Call `poll` until `finished`; `close` ends it at any time and leaves nothing."""

    def __init__(
        self,
        process: TrialProcess,
        limits: Limits,
        is_command: bool = False,
        clock: Callable[[], float] = time.monotonic,
        watch: Watch | None = None,
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
        self._watch = watch
        self._mark = MemoryMark(limits.budget_bytes, watch, clock)
        self._over: OverMark | None = None
        self._events = EventReader()
        self._status_rest = b""
        self._wait_status: int | None = None
        self._gone = False
        self._keeper_lost = False
        self._started = self._last_progress = clock()
        self._reported_at: float | None = None
        """Since when all that the trial has to tell is told."""
        self._stop_cause: StopCause | None = None
        self._stop_at: float | None = None
        self._stop_limit_s: float | None = None
        self._was_frozen = False
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
            self._was_frozen = self.pid is not None and is_frozen(self.pid)
            self._process.stop(MEMORY_GRACE_S if cause is StopCause.MEMORY else GRACE_S)

    def poll(self, timeout_s: float = 0.1) -> list[Event]:
        """Wait up to `timeout_s` for news; hold the limits; return the events that came."""
        if self.finished:
            return []
        fds = [self._process.status_fd, self._process.events_fd]
        ready = select.select([fd for fd in fds if not (fd == fds[0] and self._keeper_lost)], [], [], timeout_s)[0]
        events = self._take_events() if fds[1] in ready else []
        if fds[0] in ready:
            self._read_status()
        if self._gone or self._keeper_lost:
            # The keeper is the last to hold the pipe: what is in it now is all there will be.
            events += self._take_events()
        if self._watch is not None:
            self._watch.look(self.seen.phase == "measure")
        over, tree = self._look_at_mark(), self._look_at_tree()
        # What came meanwhile tells whether the trial was still measuring, and that it goes on.
        events += self._take_events()
        self._hold_memory(over, tree)
        self._hold_limits()
        if self._gone or self._keeper_lost:
            self._finish()
        return events

    def launch(self) -> Launch:
        """The launch as it is stored."""
        return self.seen.launch(self._watch)

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

    def _take_events(self) -> list[Event]:
        """Those that the pipe holds now, taken into `seen`."""
        events: list[Event] = []
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._process.events_fd, READ_BYTES):
                events += self._events.feed(data)
        for event in events:
            # What a trial complains of once it was told to stop comes from that, such as workers that are gone.
            if self._stop_cause is None or not isinstance(event, Error):
                self.seen.take(event)
        if events:
            self._last_progress = self._clock()
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

    @property
    def _is_measured(self) -> bool:
        """Whether its memory counts: not any more once all is in hand, or once it ends."""
        seen = self.seen
        is_over = seen.done is not None or seen.error is not None or seen.phase in AFTER_MEASURING
        return not (is_over or self._gone or self._stop_at is not None)

    def _look_at_mark(self) -> OverMark | None:
        seen = self.seen
        if not self._is_measured:
            return None
        over = self._mark.look(seen.main_pid or self.pid, seen.resident_mark_bytes)
        if self._mark.driver_bytes is not None:
            seen.take_device_peak(self._mark.driver_bytes)
        return over

    def _look_at_tree(self) -> TreeMemory | None:
        if self.pid is None or not self._is_measured:
            return None
        return self.seen.host_memory.look(self.pid, self.seen.main_pid or self.pid)

    def _hold_memory(self, over: OverMark | None, tree: TreeMemory | None) -> None:
        """End a trial that holds more memory than its budgets."""
        if not self._is_measured:
            return
        budget = self._limits.host_bytes
        if over is not None:
            self._over = over
            self.seen.take_device_peak(over.taken_bytes)
            self.stop(StopCause.MEMORY)
        elif tree is not None and budget is not None and tree.total_bytes > budget:
            self._over_host_budget = tree
            self.stop(StopCause.HOST_BUDGET)

    def _hold_limits(self) -> None:
        now = self._clock()
        if self._stop_at is not None:
            if now - self._stop_at > GRACE_S + STUCK_S:
                self._process.keeper.kill()
            return
        if self.seen.done is not None or self.seen.error is not None:
            self._reported_at = self._reported_at or now
            if now - self._reported_at > LEAVE_S:
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
                over=self._over,
                phase=self.seen.phase,
                host_oom_kills=oom_kills() - self._oom_kills_before,
                log_tail=last_words(self._process.log),
                is_command=self._is_command,
                is_frozen=self._was_frozen,
                host_bytes=tree.total_bytes if (tree := self._over_host_budget) else None,
                host_budget_bytes=self._limits.host_bytes,
                other_processes=tree.others if tree else 0,
            ),
            str(self._process.log),
        )


def is_frozen(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU)."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"T"
    return False


def oom_kills() -> int:
    """Processes that the kernel's out-of-memory killer ended since boot (all cgroups); 0 where unknown."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat") as vmstat:
        for line in vmstat:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def become_subreaper() -> None:
    """Adopt orphans of keepers that were killed, so that `kill_orphans` finds them."""
    from gputune_tui.trial.keeper import PR_SET_CHILD_SUBREAPER, prctl

    prctl(PR_SET_CHILD_SUBREAPER, 1)
