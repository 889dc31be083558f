"""What the node is and how fresh its numbers are, as lines."""

from __future__ import annotations

from gputune_tui.domain.telemetry import NodeSnapshot
from gputune_tui.tui.widgets.lines import Line, wrapped


def problem_lines(snapshot: NodeSnapshot, width: int) -> list[Line]:
    """Why there are no GPU panels."""
    return [] if snapshot.problem is None else wrapped(snapshot.problem, width, "warn")


def header(
    snapshot: NodeSnapshot | None, age_s: float | None, paused: bool, interval_s: float | None = None
) -> list[str]:
    """What the node is, in parts that may be joined as far as there is room."""
    if snapshot is None:
        return ["reading the node"]
    parts = ["SIMULATED"] if snapshot.simulated else []
    parts += ["RECORDED"] if snapshot.recorded else []
    parts.append(snapshot.host.hostname)
    if snapshot.driver:
        parts.append(f"driver {snapshot.driver}")
    if snapshot.cuda:
        parts.append(f"CUDA {snapshot.cuda}")
    interval = "" if interval_s is None else f"{interval_s:.1f} s "
    parts.append("paused" if paused else interval + liveness(age_s, interval_s))
    return parts


STALE_S = 4.0
"""Older numbers are called stale; where they come rarely, those that missed a reading."""
MISSED = 2.5


def liveness(age_s: float | None, interval_s: float | None = None) -> str:
    """How old the numbers are, in words."""
    if age_s is None:
        return "no numbers yet"
    is_stale = age_s > max(STALE_S, MISSED * (interval_s or 0.0))
    return f"stale {age_s:.0f} s" if is_stale else "live"
