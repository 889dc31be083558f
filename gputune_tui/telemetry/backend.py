"""What the sampling process reads from: the real node, a simulated one, a recorded one."""

from __future__ import annotations

from typing import Protocol

from gputune_tui.domain.telemetry import NodeSnapshot, SamplerSettings


class Backend(Protocol):
    """A source of snapshots."""

    def read(self, order: SamplerSettings) -> NodeSnapshot:
        """The node now, as far as `order` wants it. Raises nothing, and returns within about half a second whatever
        the driver does."""

    def close(self) -> None:
        """Let go of what was opened; never waits for the driver."""
