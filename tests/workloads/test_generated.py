"""Generated sets: photograph-like, the same every time, and there whole or not at all."""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

DEADLINE_S = 60
FORK = multiprocessing.get_context("fork")


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def entries(generated: Any, folder: Path) -> Any:
    return json.loads((folder / generated.ANNOTATIONS).read_text())


class Maker:
    """A process of its own that makes the set "race"."""

    def __init__(self, generated: Any, cache: Path, images: int) -> None:
        self._answer, sender = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=self._run, args=(generated, cache, images, sender))
        self.process.start()
        sender.close()

    @staticmethod
    def _run(generated: Any, cache: Path, images: int, sender: Connection) -> None:
        os.environ["XDG_CACHE_HOME"] = str(cache)
        tempfile.tempdir = str(cache)
        try:
            sender.send(str(generated.generated_set(race(generated, images))))
        except OSError as error:
            sender.send(str(error))

    def answer(self) -> str:
        """The set's folder, or why there is none."""
        assert self._answer.poll(DEADLINE_S)
        text: str = self._answer.recv()
        self.process.join(DEADLINE_S)
        return text


def race(generated: Any, images: int) -> Any:
    return generated.Recipe("race", images, 64, 96)


def drawing(place: Path) -> bool:
    """A half-made set has its first file."""
    return next(place.glob(".race-*/*/*.jpg"), None) is not None


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_images_are_like_photographs(generated: Any, images: Any, pictures: Path) -> None:
    content = entries(generated, pictures)
    sizes = {(image["width"], image["height"]) for image in content["images"]}
    assert len(content["images"]) == 96
    assert len(sizes) > 20
    for image in content["images"][:12]:
        pixels = images.read_image(pictures / image["file_name"])
        assert pixels.shape == (3, image["height"], image["width"])
        assert 112 <= min(sizes := pixels.shape[1:]) <= max(sizes) <= 208
        bits = 8 * image["bytes"] / (image["width"] * image["height"])
        assert 1 < bits < 8, "JPEG photographs take about 2 to 5 bits a pixel"
        assert pixels.float().std() > 15
    assert len({image["bytes"] for image in content["images"]}) > 80


def test_boxes_lie_within_their_images(generated: Any, pictures: Path) -> None:
    content = entries(generated, pictures)
    images = {image["id"]: image for image in content["images"]}
    names = {category["id"]: category["name"] for category in content["categories"]}
    assert {box["image_id"] for box in content["annotations"]} == set(images), "every image has an object"
    largest: dict[int, str] = {}
    for box in sorted(content["annotations"], key=lambda box: box["area"]):
        left, top, width, height = box["bbox"]
        image = images[box["image_id"]]
        assert 0 <= left < left + width <= image["width"]
        assert 0 <= top < top + height <= image["height"]
        largest[box["image_id"]] = names[box["category_id"]]
    folders = {identity: image["file_name"].partition("/")[0] for identity, image in images.items()}
    alike = sum(largest[identity] == folder for identity, folder in folders.items())
    assert alike > 0.8 * len(images), "a folder is named after the main object, which is mostly the largest"


@pytest.mark.parametrize("category", range(6))
def test_a_box_encloses_what_was_painted(generated: Any, category: int) -> None:
    painter = generated.Painter(category)
    pixels, detail = torch.zeros(3, 90, 120), torch.zeros(1, 90, 120)
    owner = torch.zeros(90, 120, dtype=torch.uint8)
    area = painter._object(pixels, detail, owner, 1, category, True)
    seen = sys.modules[generated.Painter.__module__]._seen(owner, 1, category, area)
    rows, columns = (pixels != 0).any(0).any(1).nonzero(), (pixels != 0).any(0).any(0).nonzero()
    painted = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    assert all(abs(int(a) - b) <= 2 for a, b in zip(painted, seen.box, strict=True)), "but for the soft edge"


def test_the_same_set_is_drawn_each_time(
    generated: Any, tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    again = generated.generated_set(generated.PICTURES["tiny"])
    assert again != pictures
    assert digests(again) == digests(pictures)


def test_an_existing_set_is_not_made_again(generated: Any, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "_draw_all", None)
    assert generated.generated_set(generated.PICTURES["tiny"]) == pictures


def test_random_numbers_of_the_process_are_left_alone(
    generated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    state = torch.get_rng_state()
    generated.generated_set(generated.Recipe("numbers", 6, 32, 48))
    assert torch.equal(torch.get_rng_state(), state)


def test_several_processes_at_once_agree_on_one_set(generated: Any, tmp_path: Path) -> None:
    makers = [Maker(generated, tmp_path, 24) for _ in range(4)]
    answers = {maker.answer() for maker in makers}
    assert len(answers) == 1
    folder = Path(answers.pop())
    assert generated.is_whole(folder, race(generated, 24))
    assert os.listdir(folder.parent) == [folder.name], "no half-made set is left"


def test_a_kill_in_the_middle_leaves_no_half_set_and_no_process(generated: Any, tmp_path: Path) -> None:
    place = tmp_path / "gputune-tui" / "images"
    maker = Maker(generated, tmp_path, 100_000)
    wait_for(lambda: drawing(place))
    children = psutil.Process(maker.process.pid).children()
    assert children
    maker.process.kill()
    maker.process.join(DEADLINE_S)
    assert psutil.wait_procs(children, timeout=DEADLINE_S)[1] == []
    drafts = list(place.iterdir())
    assert [draft.name[0] for draft in drafts] == ["."]
    folder = Path(Maker(generated, tmp_path, 6).answer())
    assert generated.is_whole(folder, race(generated, 6))
    assert drafts[0].exists(), "it may be a living process's"
    os.utime(drafts[0], (0, 0))
    Maker(generated, tmp_path, 7).answer()
    assert not drafts[0].exists()


def test_a_killed_drawing_process_is_said(generated: Any, tmp_path: Path) -> None:
    maker = Maker(generated, tmp_path, 100_000)
    place = tmp_path / "gputune-tui" / "images"
    for folder in (place, tmp_path / f"gputune-tui-{os.getuid()}" / "images"):
        wait_for(functools.partial(drawing, folder))
        for child in psutil.Process(maker.process.pid).children():
            child.kill()
    assert "a process that draws them was killed; set XDG_CACHE_HOME" in maker.answer()
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncate", "remove", "annotations", "empty"])
def test_a_damaged_set_is_made_anew(
    generated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recipe = generated.Recipe("damaged", 6, 32, 48)
    folder = generated.generated_set(recipe)
    before = digests(folder)
    file = next(folder.glob("*/*.jpg"))
    if damage == "truncate":
        os.truncate(file, 0)
    elif damage == "remove":
        file.unlink()
    elif damage == "annotations":
        (folder / generated.ANNOTATIONS).write_text('{"images": [')
    else:
        for path in folder.rglob("*.j*"):
            path.unlink()
    assert not generated.is_whole(folder, recipe)
    assert generated.generated_set(recipe) == folder
    assert digests(folder) == before
    assert os.listdir(folder.parent) == [folder.name]


def test_a_cache_that_cannot_be_written(generated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    recipe = generated.Recipe("elsewhere", 6, 32, 48)
    folder = generated.generated_set(recipe)
    assert folder.is_relative_to(tmp_path / "temporary")
    assert (tmp_path / "temporary" / f"gputune-tui-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    assert generated.generated_set(recipe) == folder
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(OSError, match=r"cannot be written to .*file.*: Not a directory; set XDG_CACHE_HOME") as caught:
        generated.generated_set(replace(recipe, name="nowhere"))
    assert "\n" not in str(caught.value)


def test_a_temporary_directory_of_someone_else_is_not_trusted(
    generated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"gputune-tui-{os.getuid()}").symlink_to(tmp_path / "theirs")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert list(generated._places()) == [tmp_path / "cache" / "gputune-tui" / "images"]


def test_a_relative_cache_is_none(generated: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert next(generated._places()) == tmp_path / ".cache" / "gputune-tui" / "images"
