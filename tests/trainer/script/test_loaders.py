"""Which loader is which: by the calls that build it, whatever else the same line builds."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from gputune_tui.trainer.script.loaders import LoaderWatch
from gputune_tui.trainer.script.patches import Patches
from tests.trainer.forked import in_fork
from tests.trainer.script.test_refusals import refuse


def build(samples: int) -> Any:
    return DataLoader(TensorDataset(torch.ones(samples, 1)), batch_size=4)


def watching() -> LoaderWatch:
    watch = LoaderWatch({}, None, refuse)
    watch.install(Patches(), watch_batches=False)
    return watch


def test_two_of_one_line_are_told_apart() -> None:
    def trial() -> Any:
        watch = watching()
        loaders = [build(samples) for samples in (8, 16)]
        assert len(loaders) == 2
        return [known.site.partition(".")[2] for known in watch.loaders]

    assert in_fork(trial) == ["", "1"]


def test_one_that_is_built_anew_over_other_data_is_the_same() -> None:
    def trial() -> Any:
        watch = watching()
        sites = []
        for samples in (8, 16, 24):
            loader = build(samples)
            sites.append(watch.loaders[-1].site)
            assert sum(len(x) for (x,) in loader) == samples
        return len(set(sites)), "." in sites[0]

    assert in_fork(trial) == [1, False]


def test_other_lines_are_other_loaders() -> None:
    def trial() -> Any:
        watch = watching()
        first = build(8)
        second = build(8)
        assert first is not second
        return len({known.site for known in watch.loaders})

    assert in_fork(trial) == 2
