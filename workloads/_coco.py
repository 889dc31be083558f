"""Read boxes from a JSON file in the format of COCO."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

USUAL_SIDE = 640
"""Assumed where the file does not tell an image's width or height."""


@dataclass(frozen=True)
class Annotations:
    """Images and their boxes; those of image `i` are `boxes[first[i]:first[i + 1]]`."""

    paths: list[str]
    boxes: Tensor
    """float32 [n, 4]: left, top, right, bottom in pixels."""
    labels: Tensor
    """int64 [n], from 1; 0 is the background."""
    first: Tensor
    categories: list[str]
    width: int
    """Of the widest image."""
    height: int
    """Of the highest image."""

    def of(self, index: int) -> tuple[Tensor, Tensor]:
        """Boxes and labels of one image."""
        start, end = self.first[index], self.first[index + 1]
        return self.boxes[start:end], self.labels[start:end]

    @property
    def most_boxes(self) -> int:
        """Boxes of the image that has most of them."""
        return int(self.first.diff().max())


def read_annotations(path: Path) -> Annotations:
    """Every image with at least one box; groups ("crowd") and boxes without an area are left out.

    Raises:
        ValueError: the file cannot be read, is not in that format, or has no box.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"annotations={path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"annotations={path} is not JSON: {error}") from error
    try:
        return _arranged(content, path)
    except (KeyError, TypeError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"annotations={path} is not in the format of COCO: {what}") from error


def _arranged(content: dict[str, Any], path: Path) -> Annotations:
    categories = sorted(content["categories"], key=lambda category: category["id"])
    label = {category["id"]: number for number, category in enumerate(categories, 1)}
    images = {image["id"]: image for image in content["images"]}
    boxes: dict[int, list[tuple[float, ...]]] = {}
    for one in content["annotations"]:
        if len(one["bbox"]) != 4:
            raise TypeError("a bbox is not [left, top, width, height]")
        left, top, width, height = one["bbox"]
        if width > 0 and height > 0 and not one.get("iscrowd"):
            if one["category_id"] not in label:
                raise TypeError(f"category {one['category_id']} is not among its categories")
            found = (left, top, left + width, top + height, label[one["category_id"]])
            boxes.setdefault(one["image_id"], []).append(found)
    shown = [identity for identity in images if identity in boxes]
    if not shown:
        raise ValueError(f"annotations={path} has no box on any of its {len(images)} images")
    rows = torch.tensor([box for identity in shown for box in boxes[identity]], dtype=torch.float64)
    counts = torch.tensor([0] + [len(boxes[identity]) for identity in shown])
    return Annotations(
        paths=[images[identity]["file_name"] for identity in shown],
        boxes=rows[:, :4].float(),
        labels=rows[:, 4].long(),
        first=counts.cumsum(0),
        categories=[str(category.get("name", category["id"])) for category in categories],
        width=max(int(images[identity].get("width", USUAL_SIDE)) for identity in shown),
        height=max(int(images[identity].get("height", USUAL_SIDE)) for identity in shown),
    )
