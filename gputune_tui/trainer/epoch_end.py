"""Tell the end of an epoch from a StopIteration that the user's dataset or collate_fn let out."""

from __future__ import annotations

import traceback
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from gputune_tui.trainer.describe import describe_exception

_FETCH = "torch/utils/data/_utils/fetch.py"
_FROM_WORKER = "in DataLoader worker"


def raised_by_the_user(end: StopIteration, loader: Any) -> str | None:
    """What is wrong, in one sentence, where `end` is no end of `loader`'s epoch; None where it is, or may be.

    A DataLoader ends its epoch outside its fetcher; only that of an iterable dataset raises one of its own, or lets
    through that of a dataset which it does not batch. A loader worker tells the end of its share otherwise.
    """
    if not isinstance(loader, DataLoader) or not _is_a_fault(end, loader):
        return None
    return f"{describe_exception(end)}; to a loader that is the end of the epoch: catch it, or use next(iterator, None)"


def _is_a_fault(end: StopIteration, loader: DataLoader[Any]) -> bool:
    if end.args and _FROM_WORKER in str(end.args[0]):
        return True
    # Not by extract_tb, which looks up source lines: every epoch ends here, in the midst of a timed block.
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(end.__traceback__)]
    inside = [index for index, file in enumerate(frames) if file.endswith(_FETCH)]
    if not inside:
        return False
    if not isinstance(loader.dataset, IterableDataset):
        return True
    return loader.batch_size is not None and inside[-1] != len(frames) - 1
