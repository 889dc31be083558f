"""What a keeper that was killed leaves behind: processes of its trial that fell to this process as their subreaper."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

ORPHANS_S = 5.0
"""How long the processes of a lost keeper are looked for."""


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
