"""Small image classifier behind heavy decoding and augmentation of large JPEG files: the loader is the limit.

Options: size=tiny|small|base, data=DIR (a directory of images, topmost sub-directories are the classes). Without loader
workers most of a step is waiting for data; with them it gains as long as there are free cores.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision.transforms import v2

from ._generated import LARGE_PICTURES, Recipe
from ._images import TO_MODEL, Pictures, labelled_files, size_from

PATCH = 16
"""The model's first layer makes one position of so many pixels in each direction."""


@dataclass(frozen=True)
class Size:
    """Shape of the model, and the images it is trained on."""

    pixels: int
    width: int
    blocks: int
    global_batch_size: int
    images: Recipe


SIZES = {
    "tiny": Size(128, 32, 2, 16, LARGE_PICTURES["tiny"]),
    "small": Size(224, 48, 4, 64, LARGE_PICTURES["small"]),
    "base": Size(224, 64, 8, 128, LARGE_PICTURES["base"]),
}


class Block(nn.Module):
    """Residual convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.convolution = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.convolution(self.norm(x)))


class Classifier(nn.Module):
    """Patches, residual blocks, mean over the image."""

    def __init__(self, size: Size, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size.width, PATCH, stride=PATCH)
        self.blocks = nn.ModuleList(Block(size.width) for _ in range(size.blocks))
        self.head = nn.Linear(size.width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Workload:
    """Augmentation as a workload."""

    def __init__(self, size: str = "small", data: str | None = None) -> None:
        self.size = size_from(size, SIZES)
        self.global_batch_size = self.size.global_batch_size
        self.files = labelled_files(data, self.size.images)

    def build_model(self) -> nn.Module:
        return Classifier(self.size, self.files.outputs)

    def build_dataset(self) -> Dataset[tuple[Tensor, int]]:
        pixels = self.size.pixels
        augment = v2.Compose(
            [
                v2.RandomResizedCrop(pixels, scale=(0.2, 1.0), antialias=True),
                v2.RandomHorizontalFlip(),
                v2.RandAugment(num_ops=2),
                v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
                v2.RandomGrayscale(0.2),
                v2.GaussianBlur(pixels // 20 * 2 + 1, (0.1, 2.0)),
                TO_MODEL,
                v2.RandomErasing(0.25),
            ]
        )
        return Pictures(self.files, augment)

    def loss(self, model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, int]:
        images, labels = batch
        return F.cross_entropy(model(images), labels), len(labels)

    def checkpoint_blocks(self, model: Classifier) -> list[nn.Module]:
        return list(model.blocks)

    def batch_size_of(self, batch: list[Tensor]) -> int:
        return len(batch[1])

    def largest_batch(self, n: int) -> list[Tensor]:
        return [torch.zeros(n, 3, self.size.pixels, self.size.pixels), torch.zeros(n, dtype=torch.long)]
