"""Notice loader workers that all yield the same samples, as of an iterable dataset that ignores get_worker_info."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gputune_tui.trainer.batch import tensors_in

COMPARED_ELEMENTS = 4096
"""Of each tensor: enough to tell batches apart, little to keep."""


class DuplicateWatch:
    """Compares the first batches of a loader whose workers take turns (torch keeps their order).

    Batch `i` comes from worker `i % workers`: the first of worker 0 and of worker 1 are equal where both read the same.
    The second batch of worker 0 must differ from its first, else the data is constant and nothing can be said.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._seen = 0
        self._first: list[Tensor] = []
        self._alike = False

    def see(self, batch: Any) -> str | None:
        """Take the next batch; gives the note for the user once it is certain."""
        index, self._seen = self._seen, self._seen + 1
        if index == 0:
            self._first = _samples(batch)
        elif index == 1:
            self._alike = bool(self._first) and _equal(self._first, _samples(batch))
        elif index == self._workers and self._alike and not _equal(self._first, _samples(batch)):
            return (
                f"duplicate samples: all {self._workers} loader workers yield the same ones; "
                "the iterable dataset must heed torch.utils.data.get_worker_info()"
            )
        return None


def _samples(batch: Any) -> list[Tensor]:
    return [tensor.flatten()[:COMPARED_ELEMENTS].clone() for tensor in tensors_in(batch) if not tensor.is_sparse]


def _equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
