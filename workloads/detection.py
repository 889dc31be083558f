"""torchvision object detector on JPEG files of different sizes: a generated set, or -D data=DIR.

Options: size=tiny|small|base, model=NAME (any torchvision detector of boxes, random weights), data=DIR,
annotations=FILE. DIR needs boxes: FILE is JSON in the format of COCO and names its images relative to DIR; without the
option it is DIR/annotations.json. Boxes drawn at random would train nothing, so there is no way to leave them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision import models, tv_tensors
from torchvision.models.mobilenetv3 import InvertedResidual
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.transforms import v2

from ._coco import Annotations, read_annotations
from ._generated import ANNOTATIONS, PICTURES, Recipe, generated_set
from ._images import GENERATED_EPOCH, SampleSeeds, epoch_length, folder_from, model_from, read_image, size_from
from ._narrow import narrow_faster_rcnn

Target = dict[str, Tensor]
Batch = tuple[list[Tensor], list[Target]]
BLOCKS = (BasicBlock, Bottleneck, InvertedResidual)
"""What activation checkpointing recomputes: the backbone's residual blocks."""
OTHER_TASKS = ("maskrcnn", "keypointrcnn")
"""Detectors that need more than boxes."""
FIXED_SIDES = ("ssd300", "ssdlite320")
"""Detectors that scale every image to one size of their own."""


@dataclass(frozen=True)
class Size:
    """A detector, how it scales its images, and the images it is trained on."""

    model: str
    """Of torchvision, or "narrow"."""
    sides: dict[str, int]
    """Scaled so that the shorter side is `min_size` and the longer at most `max_size`."""
    global_batch_size: int
    images: Recipe
    proposals: dict[str, int] = field(default_factory=dict)
    """Of Faster R-CNN; torchvision's own where empty."""


SIZES = {
    "tiny": Size(
        "narrow",
        {"min_size": 96, "max_size": 160},
        8,
        PICTURES["tiny"],
        {"rpn_pre_nms_top_n_train": 200, "rpn_post_nms_top_n_train": 100, "box_batch_size_per_image": 32},
    ),
    "small": Size("fasterrcnn_resnet50_fpn", {"min_size": 320, "max_size": 533}, 16, PICTURES["small"]),
    "base": Size("fasterrcnn_resnet50_fpn_v2", {"min_size": 800, "max_size": 1333}, 16, PICTURES["base"]),
}


class Detections(Dataset[tuple[Tensor, Target]]):
    """Images with their boxes, each of its own size; an epoch goes through a small set several times."""

    def __init__(self, folder: Path, annotations: Annotations, epoch: int) -> None:
        self.folder = folder
        self.annotations = annotations
        self.length = epoch_length(len(annotations.paths), epoch)
        self.seeds = SampleSeeds(self.length)
        self.augment = v2.Compose(
            [v2.RandomPhotometricDistort(), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
        )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        file = index % len(self.annotations.paths)
        image = read_image(self.folder / self.annotations.paths[file])
        boxes, labels = self.annotations.of(file)
        with self.seeds.of(index):
            image, boxes = self.augment(
                image, tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=image.shape[-2:])
            )
        return image, {"boxes": boxes.as_subclass(Tensor), "labels": labels}


class Workload:
    """Object detection as a workload."""

    def __init__(
        self, size: str = "small", model: str | None = None, data: str | None = None, annotations: str | None = None
    ) -> None:
        self.size = size_from(size, SIZES)
        self.model = self.size.model if model is None else model_from(model, detectors(), "a detector of boxes")
        self.global_batch_size = self.size.global_batch_size
        self.epoch = GENERATED_EPOCH if data is None else 0
        if data is None and annotations is not None:
            raise ValueError(f"annotations={annotations} needs data=DIR, the directory of the images that it names")
        self.folder = generated_set(self.size.images) if data is None else folder_from(data)
        self.annotations = read_annotations(annotations_file(self.folder, annotations))

    def build_model(self) -> nn.Module:
        options: dict[str, Any] = {"num_classes": 1 + len(self.annotations.categories)}
        if not self.model.startswith(FIXED_SIDES):
            options |= self.size.sides
        if self.model.startswith(("fasterrcnn", "narrow")):
            options |= self.size.proposals
        if self.model == "narrow":
            return narrow_faster_rcnn(**options)
        return models.get_model(self.model, weights=None, weights_backbone=None, **options)

    def build_dataset(self) -> Dataset[tuple[Tensor, Target]]:
        return Detections(self.folder, self.annotations, self.epoch)

    def collate_fn(self, samples: Sequence[tuple[Tensor, Target]]) -> Batch:
        return [image for image, _ in samples], [target for _, target in samples]

    def build_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.002, momentum=0.9, weight_decay=5e-4)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        images, targets = batch
        return torch.stack(list(model(images, targets).values())).sum(), len(images)

    def checkpoint_blocks(self, model: nn.Module) -> list[nn.Module] | None:
        return [module for module in model.modules() if isinstance(module, BLOCKS)] or None

    def batch_size_of(self, batch: Batch) -> int:
        return len(batch[0])

    def largest_batch(self, n: int) -> Batch:
        """Upright and lying images in turn: torchvision pads all of them to what holds the widest and the highest."""
        long, short = max(self.annotations.width, self.annotations.height), self.shortest_side()
        sides = [(short, long) if number % 2 else (long, short) for number in range(n)]
        count = self.annotations.most_boxes
        boxes = torch.tensor([0.0, 0.0, short / 2, short / 2]).repeat(count, 1)
        labels = torch.ones(count, dtype=torch.long)
        images = [torch.zeros(3, *side) for side in sides]
        return images, [{"boxes": boxes.clone(), "labels": labels.clone()} for _ in range(n)]

    def shortest_side(self) -> int:
        """Such that an image whose longer side is the set's longest is scaled to as many pixels as any."""
        long = max(self.annotations.width, self.annotations.height)
        sides = self.size.sides
        return max(1, round(long * sides["min_size"] / sides["max_size"]))


def detectors() -> list[str]:
    """Names of torchvision's detectors that need boxes alone."""
    return [name for name in models.list_models(models.detection) if not name.startswith(OTHER_TASKS)]


def annotations_file(folder: Path, text: str | None) -> Path:
    """The file with the boxes, from an option."""
    path = folder / ANNOTATIONS if text is None else Path(text).expanduser()
    if path.is_file():
        return path
    if text is not None:
        raise ValueError(f"annotations={text} is not a file; give JSON in the format of COCO")
    raise ValueError(f"{folder} has no boxes: give annotations=FILE, JSON in the format of COCO")
