"""Random: the cells of a space in an order drawn from a seed, the reference first, never one twice."""

from __future__ import annotations

from random import Random

from gputune_tui.domain.space import Cells
from gputune_tui.search.grid import GridSampler, reference_first


class RandomSampler(GridSampler):
    """Asks for at most `limit` cells, the reference included; the same seed gives the same order."""

    def __init__(self, cells: Cells, seed: int, limit: int | None = None) -> None:
        super().__init__(cells)
        first, *others = reference_first(cells)
        Random(seed).shuffle(others)
        self._left = [first, *others][:limit]
