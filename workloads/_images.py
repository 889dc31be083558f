"""Image files as data: find them, decode them, and augment them the same way however many workers load them."""

from __future__ import annotations

import contextlib
import difflib
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Channel statistics of ImageNet, as torchvision's own recipes use them."""
TO_MODEL = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
"""uint8 pixels -> what a classifier is fed."""
GENERATED_EPOCH = 4096
"""Samples of an epoch of a generated set."""


def folder_from(text: str) -> Path:
    """The user's directory from an option."""
    path = Path(text).expanduser()
    if not path.is_dir():
        raise ValueError(f"data={text} is not a directory; give one with images, or leave data out")
    return path


def size_from(text: str, sizes: dict[str, Any]) -> Any:
    """The entry of `sizes` that an option names."""
    if text not in sizes:
        raise ValueError(f"size={text} is not one of {', '.join(sizes)}")
    return sizes[text]


def model_from(text: str, names: Sequence[str], what: str) -> str:
    """The name of a torchvision model from an option."""
    if text not in names:
        near = difflib.get_close_matches(text, names, n=3, cutoff=0.5) or list(names)[:3]
        raise ValueError(f"model={text} is not {what} of torchvision; near are {', '.join(near)}")
    return text


def find_images(folder: Path) -> list[str]:
    """Paths of all images below `folder`, relative to it and sorted; hidden files and folders are left out."""
    found: list[str] = []
    seen: set[str] = set()
    for place, folders, files in os.walk(folder, onerror=_refuse_unreadable, followlinks=True):
        # A link may lead back to a folder above it.
        folders[:] = [f for f in folders if f[0] != "." and os.path.realpath(os.path.join(place, f)) not in seen]
        seen.add(os.path.realpath(place))
        found += [os.path.join(place, f) for f in files if f[0] != "." and f.lower().endswith(SUFFIXES)]
    if not found:
        raise ValueError(f"there is no image in {folder}; wanted are files that end in {', '.join(SUFFIXES)}")
    return sorted(os.path.relpath(path, folder) for path in found)


def _refuse_unreadable(error: OSError) -> None:
    raise ValueError(f"{error.filename} cannot be read: {error.strerror}")


def classes_of(paths: Sequence[str]) -> tuple[list[str], list[int]]:
    """Names of the classes, which are the topmost sub-directories, and the class of each image."""
    names = [path.split(os.sep)[0] if os.sep in path else "." for path in paths]
    classes = sorted(set(names))
    number = {name: index for index, name in enumerate(classes)}
    return classes, [number[name] for name in names]


def read_image(path: Path) -> Tensor:
    """Decode an image file to uint8 RGB of shape [3, height, width]; of an animation, its first picture."""
    try:
        image = decode_image(str(path), mode=ImageReadMode.RGB)
    except RuntimeError as error:
        raise ValueError(f"{path} cannot be read as an image: {_reason(path, error)}") from error
    image = image[0] if image.dim() == 4 else image
    return image if image.dtype == torch.uint8 else v2.functional.to_dtype(image, torch.uint8, scale=True)


def _reason(path: Path, error: RuntimeError) -> str:
    """Why, without the place in torchvision's sources that its texts begin with."""
    try:
        if path.stat().st_size == 0:
            return "the file is empty"
        with path.open("rb"):
            pass
    except OSError as problem:
        return problem.strerror or str(problem)
    return str(error).splitlines()[0].rpartition(".cpp:")[2].partition(", ")[2] or str(error).splitlines()[0]


class SampleSeeds:
    """Random augmentation that follows from the sample and how often it was drawn, not from who draws it.

    The counts lie in memory that forked loader workers share. A sample is drawn once an epoch, so that it looks new in
    every epoch, and the same with any number of workers, persistent or not.
    """

    def __init__(self, samples: int) -> None:
        self._drawn = torch.frombuffer(mmap.mmap(-1, 4 * samples), dtype=torch.int32)
        self._seed = torch.initial_seed()

    @contextlib.contextmanager
    def of(self, index: int) -> Iterator[None]:
        """Within this context torch's random numbers belong to sample `index`; outside they go on as before."""
        epoch = int(self._drawn[index])
        self._drawn[index] += 1
        state = torch.get_rng_state()
        # torch.manual_seed would seed the GPU's generators too.
        torch.default_generator.manual_seed((self._seed + epoch * len(self._drawn) + index) % (1 << 32))
        try:
            yield
        finally:
            torch.set_rng_state(state)


class Pictures(Dataset[tuple[Tensor, int]]):
    """Labelled image files: decode, then augment.

    An epoch goes through a small set several times, each time augmented anew, until it has `epoch` samples: epochs of
    a few steps would measure little but the start of loader workers.
    """

    def __init__(
        self, folder: Path, paths: Sequence[str], labels: Sequence[int], augment: Callable[[Tensor], Any], epoch: int = 0
    ) -> None:
        self.folder = folder
        self.paths = paths
        self.labels = labels
        self.augment = augment
        self.length = len(paths) * max(1, epoch // len(paths))
        self.seeds = SampleSeeds(self.length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file = index % len(self.paths)
        with self.seeds.of(index):
            return self.augment(read_image(self.folder / self.paths[file])), self.labels[file]
