"""Grid: every distinct cell of a space, the reference first."""

from __future__ import annotations

from collections.abc import Collection

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import Cells
from gputune_tui.domain.trial import Trial


class GridSampler:
    """Asks for each cell once; the reference comes first, since guard and ratios compare with it."""

    def __init__(self, cells: Cells, done: Collection[TrainSettings] = ()) -> None:
        self._left = [settings for settings in reference_first(cells) if settings not in done]

    def ask(self) -> TrainSettings | None:
        """The next cell; None after the last."""
        return self._left.pop(0) if self._left else None

    def tell(self, trial: Trial) -> None:
        """Leave out a cell that was run without being asked for; results do not change what a grid tries."""
        if trial.settings in self._left:
            self._left.remove(trial.settings)


def reference_first(cells: Cells) -> list[TrainSettings]:
    """All cells in the order of the space, with the reference at the head."""
    return list(dict.fromkeys((cells.reference, *cells.settings)))
