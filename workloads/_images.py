"""Image files as data: find them, decode them, and augment them the same way however many workers load them."""

from __future__ import annotations

import contextlib
import difflib
import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2

from ._generated import Recipe, generated_set

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Channel statistics of ImageNet, as torchvision's own recipes use them."""
TO_MODEL = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
"""uint8 pixels -> what a classifier is fed."""
MOST_SEED = (1 << 63) - 1
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


@dataclass(frozen=True)
class LabelledFiles:
    """Images below a folder; the topmost sub-directories are the classes."""

    folder: Path
    paths: list[str]
    """Relative to the folder."""
    labels: list[int]
    classes: list[str]
    epoch: int = 0
    """Samples wanted in an epoch: it goes through a small set several times. 0: once."""

    @property
    def outputs(self) -> int:
        """What a classifier has to tell apart; one class alone would leave nothing to learn."""
        return max(2, len(self.classes))


def labelled_files(data: str | None, generated: Recipe) -> LabelledFiles:
    """The user's images, else a generated set."""
    folder = generated_set(generated) if data is None else folder_from(data)
    paths = find_images(folder)
    names = [path.split(os.sep)[0] if os.sep in path else "." for path in paths]
    classes = sorted(set(names))
    number = {name: index for index, name in enumerate(classes)}
    labels = [number[name] for name in names]
    return LabelledFiles(folder, paths, labels, classes, GENERATED_EPOCH if data is None else 0)


def read_image(path: Path) -> Tensor:
    """Decode an image file to uint8 RGB of shape [3, height, width]; of an animation, its first picture."""
    try:
        with Image.open(path) as picture:
            return v2.functional.pil_to_tensor(picture if picture.mode == "RGB" else picture.convert("RGB"))
    except MemoryError:
        raise
    except Exception as error:  # PIL's readers raise OSError, SyntaxError, struct.error and more
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE):
            raise  # no fault of the file
        raise ValueError(f"{path} cannot be read as an image: {_reason(error, path)}") from error


def _reason(error: Exception, path: Path) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if path.stat().st_size == 0:
        return "the file is empty"
    if isinstance(error, UnidentifiedImageError):
        return "it is in no known format"
    return " ".join(str(error).split()) or type(error).__name__


def epoch_length(files: int, wanted: int) -> int:
    """Samples of an epoch that goes through all files as often as fits into `wanted`, and at least once.

    Epochs of a few steps would measure little but the start of loader workers.
    """
    return files * max(1, wanted // files)


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
        torch.default_generator.manual_seed(self._seed * 1_000_003 + epoch * len(self._drawn) + index & MOST_SEED)
        try:
            yield
        finally:
            torch.set_rng_state(state)


class Pictures(Dataset[tuple[Tensor, int]]):
    """Labelled image files: decode, then augment."""

    def __init__(self, files: LabelledFiles, augment: Callable[[Tensor], Any]) -> None:
        self.files = files
        self.augment = augment
        self.length = epoch_length(len(files.paths), files.epoch)
        self.seeds = SampleSeeds(self.length)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file = index % len(self.files.paths)
        image = read_image(self.files.folder / self.files.paths[file])
        with self.seeds.of(index):
            return self.augment(image), self.files.labels[file]
