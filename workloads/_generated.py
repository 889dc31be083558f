"""The generated image sets: JPEG files and their boxes, drawn once and kept in the user's cache.

A set is a directory: one folder of files for each category (of the main object), and `annotations.json` in the format
of COCO. It appears under its name whole or not at all, whoever makes it at the same time or is killed meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from ._drawing import CATEGORIES, Painter

VERSION = 1
"""Part of a set's name: raise it with every change of what is drawn."""
ANNOTATIONS = "annotations.json"
MOST_PROCESSES = 8
ABANDONED_S = 3600
"""A half-made set that nobody wrote to for this long is a killed process's."""


@dataclass(frozen=True)
class Recipe:
    """What is drawn; equal recipes are the same set."""

    name: str
    images: int
    shortest: int
    """No side of an image has fewer pixels."""
    longest: int
    quality: tuple[int, int] = (88, 96)
    """JPEG quality, from and to."""

    @property
    def folder(self) -> str:
        """The name of the set's directory."""
        return f"{self.name}-{self.images}x{self.shortest}-{self.longest}-v{VERSION}"


PICTURES = {
    "tiny": Recipe("pictures", images=96, shortest=112, longest=208),
    "small": Recipe("pictures", images=384, shortest=333, longest=500),
    "base": Recipe("pictures", images=512, shortest=375, longest=640),
}
"""Images of the sizes that data sets of photographs hold."""
LARGE_PICTURES = {
    "tiny": Recipe("large", images=32, shortest=480, longest=800),
    "small": Recipe("large", images=96, shortest=768, longest=1152),
    "base": Recipe("large", images=64, shortest=1200, longest=1800),
}
"""Images nearer to those that come out of cameras: to decode them is work."""


def generated_set(recipe: Recipe) -> Path:
    """The directory of a set, made now if it is not there.

    Raises:
        OSError: neither the cache nor the temporary directory can hold it.
    """
    places = list(_places())
    for place in places:
        if is_whole(place / recipe.folder, recipe):
            return place / recipe.folder
    problem = OSError(errno.ENOENT, "there is no directory")
    for place in places:
        try:
            return _make(place, recipe)
        except OSError as error:
            problem = error
    raise OSError(
        problem.errno,
        f"the images to train on cannot be written to {' or '.join(map(str, places))}: {problem.strerror}; "
        "set XDG_CACHE_HOME to a directory with room for them, or give -D data=DIR",
    )


def _places() -> Iterator[Path]:
    """Where sets may lie: the cache, then a directory of this user's own under the temporary one."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if cache.is_absolute():  # as its specification says
        yield cache / "gputune-tui" / "images"
    else:
        with contextlib.suppress(RuntimeError):  # a user without a home
            yield Path.home() / ".cache" / "gputune-tui" / "images"
    ours = Path(tempfile.gettempdir()) / f"gputune-tui-{os.getuid()}"
    with contextlib.suppress(OSError):
        ours.mkdir(mode=0o700, exist_ok=True)
        if ours.lstat().st_uid == os.getuid() and not ours.is_symlink():
            yield ours / "images"


def is_whole(folder: Path, recipe: Recipe) -> bool:
    """Every file of the set is there with the size it had; a crashed machine or a cleaner may have taken some."""
    try:
        images = json.loads((folder / ANNOTATIONS).read_bytes())["images"]
        return len(images) == recipe.images and all(
            (folder / image["file_name"]).stat().st_size == image["bytes"] for image in images
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _make(place: Path, recipe: Recipe) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(place)
    target = place / recipe.folder
    draft = Path(tempfile.mkdtemp(prefix=f".{recipe.folder}-", dir=place))
    try:
        draft.chmod(0o755)
        _draw_all(draft, recipe)
        _put_in_place(draft, target, recipe)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _put_in_place(draft: Path, target: Path, recipe: Recipe) -> None:
    """Rename the finished draft; another process may have been faster, and a damaged set makes way."""
    while not is_whole(target, recipe):
        try:
            os.rename(draft, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not is_whole(target, recipe):
                grave = Path(tempfile.mkdtemp(prefix=f".{recipe.folder}-", dir=target.parent))
                with contextlib.suppress(FileNotFoundError):
                    os.rename(target, grave / "damaged")
                shutil.rmtree(grave, ignore_errors=True)


def _remove_abandoned(place: Path) -> None:
    for draft in place.glob(".*-v*-*"):
        with contextlib.suppress(OSError):
            if time.time() - draft.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(draft, ignore_errors=True)


def _draw_all(folder: Path, recipe: Recipe) -> None:
    """Draw with several processes: what they take in memory is none of ours, and ends with them."""
    for category in CATEGORIES:
        (folder / category).mkdir()
    context = multiprocessing.get_context("fork")
    count = min(len(os.sched_getaffinity(0)), MOST_PROCESSES)
    answers, processes = [], []
    for number in range(count):
        answer, sender = context.Pipe(duplex=False)
        process = context.Process(target=_draw_share, args=(folder, recipe, number, count, sender), daemon=True)
        process.start()
        sender.close()
        answers.append(answer)
        processes.append(process)
    try:
        shares = [_received(answer) for answer in answers]
    finally:
        for process in processes:
            process.terminate()
            process.join()
    pages = sorted((page for share in shares for page in share), key=lambda page: page["image"]["id"])
    (folder / ANNOTATIONS).write_text(json.dumps(_annotations(pages)), encoding="utf-8")


def _received(answer: Connection) -> list[dict[str, Any]]:
    try:
        share = answer.recv()
    except EOFError:
        raise OSError(errno.EIO, "a process that draws them was killed") from None
    if isinstance(share, OSError):
        raise share
    return list(share)


def _draw_share(folder: Path, recipe: Recipe, number: int, step: int, sender: Connection) -> None:
    # The OpenMP threads of the process that forked are not in this one.
    torch.set_num_threads(1)
    parent = os.getppid()
    answer: list[dict[str, Any]] | OSError = []
    try:
        for index in range(number, recipe.images, step):
            if os.getppid() != parent:
                os._exit(1)
            answer.append(_draw_file(folder, recipe, index))
    except OSError as error:
        answer = error
    sender.send(answer)


def _draw_file(folder: Path, recipe: Recipe, index: int) -> dict[str, Any]:
    """Write one file; gives its part of the annotations."""
    painter = Painter(index)
    height, width = painter.size(recipe.shortest, recipe.longest)
    main = index % len(CATEGORIES)
    pixels, objects = painter.image(height, width, main)
    buffer = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=painter.whole(*recipe.quality))
    data = buffer.getvalue()
    name = f"{CATEGORIES[main]}/{index:05}.jpg"
    (folder / name).write_bytes(data)
    image = {"id": index, "file_name": name, "width": width, "height": height, "bytes": len(data)}
    return {"image": image, "objects": [(o.category, o.box) for o in objects]}


def _annotations(pages: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything in COCO's format: boxes are [left, top, width, height], categories count from 1."""
    boxes = [
        {"image_id": page["image"]["id"], "category_id": category + 1, "bbox": [x0, y0, x1 - x0, y1 - y0]}
        for page in pages
        for category, (x0, y0, x1, y1) in page["objects"]
    ]
    return {
        "images": [page["image"] for page in pages],
        "annotations": [
            {"id": number, **box, "area": box["bbox"][2] * box["bbox"][3], "iscrowd": 0}
            for number, box in enumerate(boxes, 1)
        ],
        "categories": [{"id": number, "name": name} for number, name in enumerate(CATEGORIES, 1)],
    }
