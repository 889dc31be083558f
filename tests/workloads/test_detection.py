"""The built-in detector: images of different sizes in lists, boxes in COCO's format, options in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader

from gputune_tui.trainer.workload import WorkloadRefused

from .conftest import Load, assert_trial_completes, batch_of, losses

GOOD: dict[str, Any] = {
    "images": [{"id": 7, "file_name": "a.jpg", "width": 200, "height": 100}, {"id": 9, "file_name": "b.jpg"}],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 30, "bbox": [10, 20, 30, 40]},
        {"id": 2, "image_id": 7, "category_id": 4, "bbox": [0, 0, 5, 5], "iscrowd": 1},
        {"id": 3, "image_id": 7, "category_id": 4, "bbox": [0, 0, 5, 0]},
        {"id": 4, "image_id": 7, "category_id": 4, "bbox": [1.5, 2, 3, 4], "iscrowd": 0},
    ],
    "categories": [{"id": 30, "name": "cup"}, {"id": 4, "name": "spoon"}],
}


@pytest.fixture
def photos(pictures: Path, tmp_path: Path) -> Path:
    """A folder of the user's own: a.jpg, b.jpg."""
    for name, path in zip("ab", sorted(pictures.glob("*/*.jpg")), strict=False):
        (tmp_path / f"{name}.jpg").write_bytes(path.read_bytes())
    return tmp_path


def test_the_loss_falls_on_real_files(load: Load) -> None:
    workload = load("detection")
    curve = losses(workload, [batch_of(workload, 4)], passes=8)
    assert curve[-1] < curve[0] - 0.2


def test_a_batch_holds_images_of_different_sizes(load: Load) -> None:
    workload = load("detection")
    loader: DataLoader[Any] = DataLoader(
        workload.user.build_dataset(), batch_size=5, num_workers=1, collate_fn=workload.user.collate_fn
    )
    images, targets = next(iter(loader))
    assert len({image.shape for image in images}) > 1
    assert workload.batch_size_of((images, targets)) == 5
    for image, target in zip(images, targets, strict=True):
        assert image.dtype == torch.float32
        assert 0 <= image.min() < image.max() <= 1
        boxes = target["boxes"]
        assert type(boxes) is torch.Tensor
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        assert (boxes[:, 2] <= image.shape[2]).all()
        assert (boxes[:, 3] <= image.shape[1]).all()
        assert target["labels"].shape == boxes.shape[:1]
        assert target["labels"].min() >= 1


def test_boxes_follow_the_mirrored_image(load: Load) -> None:
    dataset = load("detection").user.build_dataset()
    wanted = dataset.annotations.of(0)[0]
    width = dataset[0][0].shape[2]
    mirrored = torch.stack([width - wanted[:, 2], wanted[:, 1], width - wanted[:, 0], wanted[:, 3]], 1)
    seen = {tuple(dataset[0][1]["boxes"].flatten().tolist()) for _ in range(20)}
    assert seen == {tuple(wanted.flatten().tolist()), tuple(mirrored.flatten().tolist())}


@pytest.mark.parametrize("size", [1, 3])
def test_batches_of_any_size(load: Load, size: int) -> None:
    workload = load("detection")
    model = workload.build_model().train()
    batch = batch_of(workload, size)
    result = workload.loss(model, batch)
    result.loss.backward()
    assert result.loss.isfinite()
    assert (result.items, workload.batch_size_of(batch)) == (size, size)
    trained = [name for name, p in model.named_parameters() if p.grad is not None]
    assert {name.partition(".")[0] for name in trained} == {"backbone", "rpn", "roi_heads"}


def test_the_largest_batch_is_the_largest(load: Load) -> None:
    workload = load("detection")
    model = workload.build_model().train()
    largest = workload.user.largest_batch(8)
    assert workload.batch_size_of(largest) == 8

    def padded(batch: Any) -> torch.Size:
        return model.transform(*batch)[0].tensors.shape

    dataset = workload.user.build_dataset()
    real = [padded(workload.user.collate_fn([dataset[i] for i in range(s, s + 8)])) for s in range(0, 96, 8)]
    worst = padded(largest)
    assert all(a <= b for shape in real for a, b in zip(shape, worst, strict=True))
    most = max(len(dataset[i][1]["labels"]) for i in range(96))
    assert len(largest[1][0]["labels"]) == most
    workload.loss(model, workload.user.largest_batch(2)).loss.backward()


@pytest.mark.parametrize("model", [None, "fcos_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_320_fpn"])
def test_models_by_name_train_all_their_parts(load: Load, model: str | None) -> None:
    workload = load("detection", **({} if model is None else {"model": model}))
    built = workload.build_model().train()
    assert any(isinstance(module, _BatchNorm) for module in built.modules()), "with random weights nothing is frozen"
    assert all(p.requires_grad for p in built.parameters())
    assert len(workload.checkpoint_blocks(built) or ()) >= 8
    loss = workload.loss(built, batch_of(workload, 1)).loss
    assert loss.isfinite()


def test_annotations_of_the_user(load: Load, photos: Path) -> None:
    (photos / "boxes.json").write_text(json.dumps(GOOD))
    workload = load("detection", data=str(photos), annotations=str(photos / "boxes.json"))
    boxes = workload.user.annotations
    assert (boxes.paths, boxes.categories) == (["a.jpg"], ["spoon", "cup"])
    assert boxes.of(0)[0].tolist() == [[10, 20, 40, 60], [1.5, 2, 4.5, 6]]
    assert boxes.of(0)[1].tolist() == [2, 1]
    assert (boxes.width, boxes.height, boxes.most_boxes) == (200, 100, 2)
    assert len(workload.user.build_dataset()) == 1
    workload.loss(workload.build_model().train(), batch_of(workload, 1)).loss.backward()


def test_the_annotations_of_a_folder_are_found_in_it(load: Load, photos: Path) -> None:
    (photos / "annotations.json").write_text(json.dumps(GOOD))
    assert load("detection", data=str(photos)).user.annotations.paths == ["a.jpg"]


def changed(**members: Any) -> str:
    return json.dumps({**GOOD, **members})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not JSON: "),
        ("[1, 2", "is not JSON: "),
        ("[]", "is not in the format of COCO: "),
        ("{}", "is not in the format of COCO: 'categories' is missing"),
        (changed(images=[{"id": 7}]), "is not in the format of COCO: 'file_name' is missing"),
        (changed(images=[]), "has no box on any of its 0 images"),
        (changed(annotations=[]), "has no box on any of its 2 images"),
        (changed(annotations=[{"image_id": 7, "category_id": 4, "bbox": [1, 2]}]), ".*: a bbox is not"),
        (changed(annotations=[{"image_id": 7, "category_id": 5, "bbox": [1, 2, 3, 4]}]), ".*: category 5 is not among"),
    ],
    ids=["empty", "cut", "list", "no-members", "no-file-name", "no-images", "no-boxes", "short-box", "no-category"],
)
def test_annotations_are_refused_in_one_sentence(load: Load, photos: Path, content: str, words: str) -> None:
    (photos / "boxes.json").write_text(content)
    with pytest.raises(WorkloadRefused, match=rf"annotations=.*boxes.json {words}") as caught:
        load("detection", data=str(photos), annotations=str(photos / "boxes.json"))
    assert "\n" not in str(caught.value)
    assert ".py" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": "huge"}, "size=huge is not one of tiny, small, base$"),
        ({"model": "fasterrcnn"}, "model=fasterrcnn is not a detector of boxes of torchvision; near are fasterrcnn_"),
        ({"model": "maskrcnn_resnet50_fpn"}, "model=maskrcnn_resnet50_fpn is not a detector of boxes"),
        ({"annotations": "x.json"}, "annotations=x.json needs data=DIR, the directory of the images that it names"),
        ({"data": ".", "annotations": "missing.json"}, "annotations=missing.json is not a file; give JSON in the"),
    ],
)
def test_options_are_refused_in_one_sentence(load: Load, options: dict[str, str], words: str) -> None:
    with pytest.raises(WorkloadRefused, match=words) as caught:
        load("detection", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_real_trial(tmp_path: Path) -> None:
    assert_trial_completes("detection", tmp_path / "study", "--set", "micro_batch_size=4,num_workers=1")
