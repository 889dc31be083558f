"""What the kernel tells of a process in one line: /proc/PID/stat."""

from __future__ import annotations

import os
from dataclasses import dataclass

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Stat:
    """What is used of /proc/PID/stat (proc(5))."""

    name: str
    parent_pid: int
    started: int
    """Clock ticks after boot; with the number it tells one process from another."""
    cpu_s: float
    """User and system time so far."""
    resident_bytes: int


def read_stat(folder: str) -> Stat:
    """Raises OSError where it cannot be read, ValueError or IndexError where it is something else."""
    with open(f"{folder}/stat", "rb") as file:
        head, _, tail = file.read().rpartition(b")")
    # The name may hold spaces and brackets; fields are counted from its last bracket on, the state being the third.
    fields = tail.split()
    return Stat(
        name=head.partition(b"(")[2].decode("utf-8", "replace"),
        parent_pid=int(fields[1]),
        started=int(fields[19]),
        cpu_s=(int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_S,
        resident_bytes=int(fields[21]) * PAGE_BYTES,
    )
