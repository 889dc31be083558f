"""What the supervisor asks of whoever looks at the device while a trial runs."""

from __future__ import annotations

from typing import Protocol

from gputune_tui.domain.conditions import Conditions


class Watch(Protocol):
    """Looks at the device of one trial."""

    def look(self, is_timed: bool) -> None:
        """Called at every poll, which must not wait; `is_timed` while a block is being timed."""

    def device_bytes(self, pid: int | None) -> int | None:
        """What the driver shows on a GPU for the processes of the trial whose main process is `pid`; None where it does
        not tell, and on a CPU."""

    def conditions(self, of_trial: Conditions) -> Conditions:
        """What the trial told of its surroundings, with what was seen of them from outside."""
