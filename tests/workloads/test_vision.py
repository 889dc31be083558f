"""The built-in classifier: every size and model by name, options in words, and a loss that falls on real files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gputune_tui.trainer.describe import describe_exception
from gputune_tui.trainer.workload import WorkloadRefused

from .conftest import Load, assert_trial_completes, batch_of, losses


def test_the_loss_falls_on_real_files(load: Load) -> None:
    workload = load("vision")
    curve = losses(workload, [batch_of(workload, 24)], passes=12)
    assert curve[-1] < curve[0] - 0.3


def test_a_sample_is_an_image_and_its_class(load: Load) -> None:
    workload = load("vision")
    dataset = workload.user.build_dataset()
    image, label = dataset[5]
    assert (image.shape, image.dtype) == ((3, 64, 64), torch.float32)
    assert workload.user.files.classes == ["cross", "diamond", "disc", "plate", "ring", "tent"]
    assert {dataset[i][1] for i in range(96)} == set(range(6))
    assert workload.user.files.paths[5].startswith(workload.user.files.classes[label])


@pytest.mark.parametrize("size", [1, 3])
def test_batches_of_any_size(load: Load, size: int) -> None:
    workload = load("vision")
    model = workload.build_model().train()
    batch = batch_of(workload, size)
    result = workload.loss(model, batch)
    result.loss.backward()
    assert (result.items, workload.batch_size_of(batch)) == (size, size)
    assert all(p.grad is not None for p in model.parameters())


def test_the_largest_batch_is_as_large_as_a_real_one(load: Load) -> None:
    workload = load("vision")
    largest, real = workload.user.largest_batch(3), batch_of(workload, 3)
    assert [t.shape for t in largest] == [t.shape for t in real]
    assert [t.dtype for t in largest] == [t.dtype for t in real]
    workload.loss(workload.build_model(), largest).loss.backward()


@pytest.mark.parametrize(
    ("model", "pixels", "blocks"),
    [
        ("resnet18", 64, 8),
        ("swin_t", 64, 12),
        ("squeezenet1_1", 64, None),
        ("googlenet", 64, None),
    ],
)
def test_models_by_name(load: Load, model: str, pixels: int, blocks: int | None) -> None:
    workload = load("vision", model=model)
    built = workload.build_model().train()
    found = workload.checkpoint_blocks(built)
    assert (None if found is None else len(found)) == blocks
    batch = workload.user.largest_batch(2)
    assert batch[0].shape[-1] == pixels
    loss = workload.loss(built, batch).loss
    loss.backward()
    assert loss.isfinite()


@pytest.mark.parametrize(
    ("model", "pixels"), [("inception_v3", 75), ("vit_h_14", 70), ("maxvit_t", 224), ("vit_b_16", 64)]
)
def test_images_are_enlarged_for_models_that_need_it(load: Load, model: str, pixels: int) -> None:
    assert load("vision", model=model).user.pixels == pixels


def test_folders_of_the_user_are_classes(load: Load, pictures: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(pictures.glob("*/*.jpg"))[:4]):
        target = tmp_path / ("cat" if number % 2 else "dog") / "more" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    workload = load("vision", data=str(tmp_path))
    assert workload.user.files.classes == ["cat", "dog"]
    assert len(workload.user.build_dataset()) == 4
    assert workload.build_model().fc.out_features == 2


def test_a_bad_image_is_named_when_it_is_met(load: Load, pictures: Path, tmp_path: Path) -> None:
    data = next(pictures.glob("*/*.jpg")).read_bytes()
    (tmp_path / "good.jpg").write_bytes(data)
    (tmp_path / "half.jpg").write_bytes(data[: len(data) // 2])
    dataset = load("vision", data=str(tmp_path)).user.build_dataset()
    assert dataset[0][0].shape == (3, 64, 64)
    with pytest.raises(ValueError, match=r"half.jpg cannot be read as an image: ") as caught:
        dataset[1]
    assert str(tmp_path / "half.jpg") in describe_exception(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": "huge"}, "size=huge is not one of tiny, small, base$"),
        ({"model": "resnet51"}, "model=resnet51 is not a classifier of torchvision; near are resnet"),
        ({"model": "fcn_resnet50"}, "model=fcn_resnet50 is not a classifier of torchvision; near are "),
        ({"model": ""}, "model= is not a classifier"),
        ({"pixels": "many"}, "pixels=many is not the side of an image, such as 224"),
        ({"pixels": "0"}, "pixels=0 is not the side"),
        ({"pixels": "100000"}, "pixels=100000 is not the side"),
        ({"pixels": "8"}, "pixels=8 does not suit narrow: it takes at least 32$"),
        ({"pixels": "100", "model": "vit_b_16"}, "does not suit vit_b_16: it takes at least 32 and a multiple of 16$"),
        ({"depth": "3"}, "unexpected keyword argument 'depth'; it takes size, model, data, pixels"),
    ],
)
def test_options_are_refused_in_one_sentence(load: Load, options: dict[str, str], words: str) -> None:
    with pytest.raises(WorkloadRefused, match=words) as caught:
        load("vision", **options)
    assert "\n" not in str(caught.value)
    assert ".py" not in str(caught.value)


@pytest.mark.slow
def test_a_real_trial(tmp_path: Path) -> None:
    trial = assert_trial_completes("vision", tmp_path / "study", "--set", "activation_checkpointing=full")
    assert any("8 of 8 blocks (BasicBlock) recomputed" in flag for flag in trial["flags"])
