"""The built-in workloads on images: their modules, and one cache of generated sets for all tests."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision  # noqa: F401 - before fresh_imports, which would forget the libraries that it loads
from torch.utils.data import default_collate

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trainer.workload import AdaptedWorkload, load_workload

from ..cli.run_cli import document, gputune
from ..trainer.conftest import fresh_imports

__all__ = ["fresh_imports"]


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of the tests' own; processes that they start inherit it."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine several threads that wait for each other take many times as long as one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def generated() -> Any:
    """The module that makes the sets."""
    return importlib.import_module("workloads._generated")


@pytest.fixture(scope="session")
def images() -> Any:
    """The module that reads images."""
    return importlib.import_module("workloads._images")


@pytest.fixture(scope="session")
def pictures(generated: Any) -> Path:
    """A small generated set."""
    folder: Path = generated.generated_set(generated.PICTURES["tiny"])
    return folder


Load = Callable[..., AdaptedWorkload]


@pytest.fixture
def load(fresh_imports: None, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Load a built-in workload in its tiny size as the trainer does: load(name, option=value)."""
    # It looks at every loaded module, which takes most of the time of a test with torchvision.
    monkeypatch.setattr("gputune_tui.trainer.workload.content_hash", lambda _: "")

    def tiny(name: str, **options: str) -> AdaptedWorkload:
        return load_workload(WorkloadRef(name, {"size": "tiny", **options}))

    return tiny


def batch_of(workload: AdaptedWorkload, size: int) -> Any:
    """The first samples as one batch."""
    dataset = workload.user.build_dataset()
    collate = workload.optional("collate_fn") or default_collate
    return collate([dataset[index] for index in range(size)])


def losses(workload: AdaptedWorkload, batches: list[Any], passes: int) -> list[float]:
    """Train on these batches; the mean loss of each pass."""
    torch.manual_seed(0)
    model = workload.build_model().train()
    optimizer = workload.build_optimizer(model.parameters())
    means = []
    for _ in range(passes):
        total = 0.0
        for batch in batches:
            result = workload.loss(model, batch)
            optimizer.zero_grad()
            result.loss.backward()
            optimizer.step()
            total += result.loss.item()
        means.append(total / len(batches))
    return means


def assert_trial_completes(name: str, study: Path, *arguments: str) -> Any:
    """Run one real trial through the command line; gives its entry in the document."""
    common = ("-D", "size=tiny", "--device", "cpu", "--budget", "4GiB", "--global-batch", "8")
    done = gputune("trial", name, *common, *arguments, "--study", study, "--json", "-")
    assert done.returncode == 0, done.stderr
    (trial,) = document(done)["trials"]
    assert (trial["state"], trial["disqualified"], trial["rank"]) == ("COMPLETE", None, 1)
    assert trial["samples_per_s"]["value"] > 0
    assert trial["breakdown"]["data_wait_s"] > 0
    return trial
