"""torchvision image classifier on JPEG files: a generated set, or -D data=DIR.

Options: size=tiny|small|base, model=NAME (any torchvision classifier, random weights), data=DIR, pixels=N.
DIR is searched with all its sub-directories; the topmost of these are the classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset
from torchvision import models
from torchvision.models.convnext import CNBlock
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.swin_transformer import SwinTransformerBlock
from torchvision.models.vision_transformer import EncoderBlock
from torchvision.transforms import v2

from ._generated import PICTURES, Recipe
from ._images import TO_MODEL, Pictures, labelled_files, model_from, size_from
from ._narrow import NarrowResNet

BLOCKS = (BasicBlock, Bottleneck, CNBlock, EncoderBlock, SwinTransformerBlock)
"""What activation checkpointing recomputes; of other models gputune-tui finds the repeated parts itself."""
TRANSFORMER_LIKE = ("vit", "swin", "maxvit", "convnext")
"""Trained with AdamW, as their authors do; all others with SGD."""
FEWEST_PIXELS = {"inception_v3": 75}
MOST_PIXELS = 4096


@dataclass(frozen=True)
class Size:
    """A model, the sides of what it is fed, and the images it is trained on."""

    model: str
    """Of torchvision, or "narrow"."""
    pixels: int
    global_batch_size: int
    images: Recipe


SIZES = {
    "tiny": Size("narrow", 64, 16, PICTURES["tiny"]),
    "small": Size("resnet50", 176, 64, PICTURES["small"]),
    "base": Size("vit_b_16", 224, 128, PICTURES["base"]),
}


class Workload:
    """Image classification as a workload."""

    def __init__(
        self, size: str = "small", model: str | None = None, data: str | None = None, pixels: str | None = None
    ) -> None:
        chosen = size_from(size, SIZES)
        self.model = chosen.model if model is None else model_from(model, models.list_models(models), "a classifier")
        self.pixels = pixels_for(self.model, chosen.pixels, pixels)
        self.global_batch_size = chosen.global_batch_size
        self.files = labelled_files(data, chosen.images)

    def build_model(self) -> nn.Module:
        if self.model == "narrow":
            return NarrowResNet(self.files.outputs)
        options: dict[str, Any] = {"weights": None, "num_classes": self.files.outputs}
        if self.model.startswith("vit"):
            options["image_size"] = self.pixels
        if self.model.startswith("maxvit"):
            options["input_size"] = (self.pixels, self.pixels)
        if self.model in ("googlenet", "inception_v3"):
            options |= {"aux_logits": False, "init_weights": True}
        return models.get_model(self.model, **options)

    def build_dataset(self) -> Dataset[tuple[Tensor, int]]:
        augment = v2.Compose([v2.RandomResizedCrop(self.pixels, antialias=True), v2.RandomHorizontalFlip(), TO_MODEL])
        return Pictures(self.files, augment)

    def build_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.model.startswith(TRANSFORMER_LIKE):
            return torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.05)
        return torch.optim.SGD(parameters, lr=0.005, momentum=0.9, weight_decay=1e-4)

    def loss(self, model: nn.Module, batch: list[Tensor]) -> tuple[Tensor, int]:
        images, labels = batch
        return F.cross_entropy(model(images), labels), len(labels)

    def checkpoint_blocks(self, model: nn.Module) -> list[nn.Module] | None:
        return [module for module in model.modules() if isinstance(module, BLOCKS)] or None

    def batch_size_of(self, batch: list[Tensor]) -> int:
        return len(batch[1])

    def largest_batch(self, n: int) -> list[Tensor]:
        return [torch.zeros(n, 3, self.pixels, self.pixels), torch.zeros(n, dtype=torch.long)]


def pixels_for(model: str, usual: int, text: str | None) -> int:
    """Height and width of what the model is fed; the usual one is adapted to models that cannot take it."""
    step = steps_of(model)
    fewest = max(step, FEWEST_PIXELS.get(model, 32))
    if text is None:
        return max(fewest, -(-usual // step) * step)
    if not text.isdecimal() or not 0 < int(text) <= MOST_PIXELS:
        raise ValueError(f"pixels={text} is not the side of an image, such as 224")
    if int(text) < fewest or int(text) % step:
        multiple = f" and a multiple of {step}" if step > 1 else ""
        raise ValueError(f"pixels={text} does not suit {model}: it takes at least {fewest}{multiple}")
    return int(text)


def steps_of(model: str) -> int:
    """What the side of an image must be a multiple of: a ViT's patches and MaxViT's windows of 7 at stride 32."""
    if model.startswith("maxvit"):
        return 224
    return int(model.rpartition("_")[2]) if model.startswith("vit_") else 1
