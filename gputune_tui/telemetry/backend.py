"""What the sampling process reads from: the real node, a simulated one, later a recorded one."""

from __future__ import annotations

from typing import Protocol

from gputune_tui.domain.telemetry import NodeSnapshot


class Backend(Protocol):
    """A source of snapshots."""

    def read(self, quiet: bool, gpus: bool = True) -> NodeSnapshot:
        """The node now. Raises nothing, and returns within about half a second whatever the driver does.

        Args:
            quiet: a timed block runs: only the cheapest readings; processes may be as they were.
            gpus: whether the driver may be asked.
        """

    def close(self) -> None:
        """Let go of what was opened; never waits for the driver."""
