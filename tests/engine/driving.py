"""Talk to an engine process as a screen does, with deadlines instead of an event loop."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gputune_tui.engine.client import EngineClient
from gputune_tui.engine.events import EngineEvent, TaskEnded

DEADLINE_S = 60.0
GONE_S = 10.0
E = TypeVar("E")


class Talk:
    """An engine and everything that it has said."""

    def __init__(self) -> None:
        self.client = EngineClient()
        self.client.start()
        self.heard: list[EngineEvent] = []

    def listen(self, until: Callable[[list[EngineEvent]], object], what: str = "") -> list[EngineEvent]:
        """Poll until `until` is true of the events heard since this call; returns these."""
        start = len(self.heard)
        deadline = time.monotonic() + DEADLINE_S
        while not until(self.heard[start:]):
            assert time.monotonic() < deadline, f"{what} did not come: {self.heard[start:]}"
            if self.client.alive:
                select.select([self.client.fileno()], [], [], 0.05)
            self.heard += self.client.poll()
        return self.heard[start:]

    def until_ended(self, title: str, count: int = 1) -> list[EngineEvent]:
        """Poll until `count` tasks of that title are over."""
        return self.listen(
            lambda events: sum(isinstance(e, TaskEnded) and e.title == title for e in events) >= count,
            f"the end of {title!r}",
        )


def of_kind(events: list[EngineEvent], kind: type[E]) -> list[E]:
    """Those of one class."""
    return [event for event in events if isinstance(event, kind)]


def is_running(pid: int) -> bool:
    """True while the process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def trial_processes(folder: Path) -> list[int]:
    """Living processes with a job of a study under `folder` in their environment: keepers, trials, their children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_running(int(entry.name)):
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"GPUTUNE_JOB=" + os.fsencode(folder) in environment:
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], object], limit_s: float, what: str) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def wait_all_gone(folder: Path, *pids: int) -> None:
    """Until no trial process of `folder` and none of `pids` runs."""
    wait_until(lambda: not trial_processes(folder) and not any(map(is_running, pids)), GONE_S, "something still runs")
