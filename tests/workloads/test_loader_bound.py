"""The built-in workload whose limit is the loader."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gputune_tui.trainer.workload import WorkloadRefused

from .conftest import Load, assert_trial_completes, batch_of, losses


def test_the_loss_falls_on_real_files(load: Load) -> None:
    workload = load("loader-bound")
    curve = losses(workload, [batch_of(workload, 8)], passes=15)
    assert curve[-1] < curve[0] - 0.1


def test_its_images_are_larger_than_those_of_vision(load: Load) -> None:
    folders = [load(name).user.files.folder for name in ("vision", "loader-bound")]
    small, large = (sum(p.stat().st_size for p in f.glob("*/*.jpg")) / len(list(f.glob("*/*.jpg"))) for f in folders)
    assert large > 5 * small


@pytest.mark.parametrize("size", [1, 3])
def test_batches_of_any_size(load: Load, size: int) -> None:
    workload = load("loader-bound")
    model = workload.build_model()
    batch = batch_of(workload, size)
    result = workload.loss(model, batch)
    result.loss.backward()
    assert (result.items, workload.batch_size_of(batch)) == (size, size)
    assert len(workload.checkpoint_blocks(model) or ()) == 2
    assert [t.shape for t in workload.user.largest_batch(size)] == [t.shape for t in batch]


def test_augmentation_draws_nothing_but_torchs_numbers(load: Load) -> None:
    def images() -> torch.Tensor:
        torch.manual_seed(1)
        batch: torch.Tensor = batch_of(load("loader-bound"), 6)[0]
        return batch

    assert torch.equal(images(), images())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": ""}, "size= is not one of tiny, small, base$"),
        ({"model": "resnet18"}, "unexpected keyword argument 'model'; it takes size, data"),
    ],
)
def test_options_are_refused_in_one_sentence(load: Load, options: dict[str, str], words: str) -> None:
    with pytest.raises(WorkloadRefused, match=words):
        load("loader-bound", **options)


@pytest.mark.slow
def test_most_of_a_step_is_waiting_for_data(tmp_path: Path) -> None:
    breakdown = assert_trial_completes("loader-bound", tmp_path / "study")["breakdown"]
    assert breakdown["data_wait_s"] > breakdown["total_s"] / 2


@pytest.mark.slow
def test_a_real_trial_with_workers(tmp_path: Path) -> None:
    assert_trial_completes("loader-bound", tmp_path / "study", "--set", "num_workers=2")
