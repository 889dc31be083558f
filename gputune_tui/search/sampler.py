"""The protocol between a search and whoever runs its trials: ask for settings, tell what became of them."""

from __future__ import annotations

from typing import Protocol

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import Trial


class Sampler(Protocol):
    """Decides what to try next."""

    def ask(self) -> TrainSettings | None:
        """The next settings, each at most once; None where nothing is left to try."""
        ...

    def tell(self, trial: Trial) -> None:
        """Take note of a finished trial."""
        ...
