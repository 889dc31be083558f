"""Reading images: what is found, what is refused in words, and augmentation that no number of workers changes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler
from torchvision.transforms import v2

from gputune_tui.trainer.workload import WorkloadRefused

from .conftest import Load


@pytest.fixture
def photo(pictures: Path) -> bytes:
    """The bytes of a JPEG file."""
    return next(pictures.glob("*/*.jpg")).read_bytes()


def test_images_are_found_below_a_folder_in_a_fixed_order(images: Any, tmp_path: Path) -> None:
    for name in ("b/2.JPG", "b/1.png", "a/deep/er/x.webp", "top.jpeg", "b/.hidden.jpg", ".git/y.jpg", "b/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    files = images.labelled_files(str(tmp_path), None)
    assert files.paths == ["a/deep/er/x.webp", "b/1.png", "b/2.JPG", "top.jpeg"]
    assert (files.classes, files.labels) == ([".", "a", "b"], [1, 2, 2, 0])
    assert files.epoch == 0


def test_a_linked_folder_is_followed(images: Any, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.jpg").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "cats").symlink_to(tmp_path / "elsewhere")
    assert images.find_images(tmp_path / "data") == ["cats/x.jpg"]


def test_one_class_still_leaves_something_to_tell_apart(images: Any, tmp_path: Path) -> None:
    (tmp_path / "x.jpg").touch()
    files = images.labelled_files(str(tmp_path), None)
    assert (files.classes, files.outputs) == (["."], 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"no image", "it is in no known format"),
        (None, "No such file or directory"),
        ("truncated", "truncated"),
        ("header", "cannot be read as an image: .+"),
    ],
)
def test_a_file_that_is_no_image_is_named(
    images: Any, tmp_path: Path, photo: bytes, content: bytes | str | None, words: str
) -> None:
    path = tmp_path / "bad one.jpg"
    if content is not None:
        cut = {"truncated": photo[: len(photo) // 2], "header": photo[:30]}
        path.write_bytes(cut[content] if isinstance(content, str) else content)
    with pytest.raises(ValueError, match=words) as caught:
        images.read_image(path)
    assert str(caught.value).startswith(f"{path} cannot be read as an image: ")
    assert "\n" not in str(caught.value)
    assert ".cpp" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("L", "jpg"), ("CMYK", "jpg"), ("L", "png"), ("RGBA", "png"), ("P", "png"), ("I;16", "png"), ("RGB", "webp")],
)
def test_every_kind_of_pixel_becomes_rgb(images: Any, tmp_path: Path, mode: str, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    Image.new(mode, (7, 5)).save(path)
    image = images.read_image(path)
    assert (image.shape, image.dtype) == ((3, 5, 7), torch.uint8)


def test_of_an_animation_the_first_picture_is_taken(images: Any, tmp_path: Path) -> None:
    frames = [Image.new("RGB", (7, 5), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    image = images.read_image(tmp_path / "x.gif")
    assert image.shape == (3, 5, 7)
    assert image[:, 0, 0].tolist() == [255, 0, 0]


def loaded(dataset: Any, **settings: Any) -> Iterator[Tensor]:
    """The batches of two epochs, in the order that the trainer uses."""
    order = torch.Generator().manual_seed(0)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=8, sampler=RandomSampler(dataset, generator=order), multiprocessing_context=None, **settings
    )
    for _ in range(2):
        for batch, labels in loader:
            yield torch.cat([batch.flatten(), labels.float()])


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_do_not_change_the_data(images: Any, pictures: Path, persistent: bool) -> None:
    files = images.labelled_files(str(pictures), None)
    augment = v2.Compose([v2.RandomResizedCrop(16, antialias=True), v2.RandAugment(), v2.ToDtype(torch.float32)])

    def epochs(**settings: Any) -> Tensor:
        torch.manual_seed(5)
        return torch.stack(list(loaded(images.Pictures(files, augment), **settings)))

    alone = epochs()
    shared = epochs(num_workers=2, persistent_workers=persistent)
    assert torch.equal(alone, shared)
    assert not torch.equal(alone[: len(alone) // 2].sort(0)[0], alone[len(alone) // 2 :].sort(0)[0])


def test_a_sample_looks_new_in_each_epoch_and_with_each_seed(images: Any) -> None:
    def draws(seed: int) -> list[float]:
        torch.manual_seed(seed)
        seeds = images.SampleSeeds(4)
        drawn = []
        for index in (0, 1, 0, 0):
            with seeds.of(index):
                drawn.append(torch.rand(()).item())
        return drawn

    assert len(set(draws(1))) == 4
    assert draws(1) == draws(1)
    assert set(draws(1)).isdisjoint(draws(2))


def test_random_numbers_outside_go_on_as_before(images: Any) -> None:
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    seeds = images.SampleSeeds(2)
    with contextlib.suppress(ValueError), seeds.of(1):
        torch.rand(5)
        raise ValueError
    assert torch.equal(torch.rand(3), wanted)


def test_an_epoch_of_a_small_set_goes_through_it_several_times(images: Any) -> None:
    assert images.epoch_length(96, 4096) == 42 * 96
    assert images.epoch_length(5000, 4096) == 5000
    assert images.epoch_length(7, 0) == 7


@pytest.mark.parametrize("name", ["vision", "detection", "loader-bound"])
def test_a_folder_without_images_is_refused(load: Load, tmp_path: Path, name: str) -> None:
    (tmp_path / "file.jpg").touch()
    (tmp_path / "empty").mkdir()
    nothing = "has no boxes: give annotations=FILE" if name == "detection" else "there is no image in .*empty; wanted"
    for path, words in (
        (tmp_path / "missing", "data=.*missing is not a directory; give one with images, or leave data out$"),
        (tmp_path / "file.jpg", "is not a directory"),
        (tmp_path / "empty", nothing),
    ):
        with pytest.raises(WorkloadRefused, match=words) as caught:
            load(name, data=str(path))
        assert "\n" not in str(caught.value)
        assert ".py" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_that_may_not_be_read(images: Any, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(ValueError, match="closed cannot be read: Permission denied"):
        images.find_images(tmp_path)
