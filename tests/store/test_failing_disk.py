"""Disks that are full or broken: whole lines stay, and what is in memory is written when there is room."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gputune_tui.errors import StoreWriteError
from gputune_tui.store.reading import read_study
from gputune_tui.store.writing import StudyWriter
from tests.store.samples import ended, opened, run_program, trial_ids


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "No space left on device"),
        (errno.EDQUOT, "quota"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "fault"),
        (errno.EACCES, "who may write"),
    ],
)
def test_a_failed_write_is_one_sentence_and_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    writer = StudyWriter(tmp_path)
    writer.append(opened())
    whole = writer.path.read_bytes()
    real_write = os.write

    def half_write(fd: int, data: bytes) -> int:
        real_write(fd, data[: len(data) // 2])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", half_write)
    with pytest.raises(StoreWriteError) as failure:
        writer.append(ended(1))
    message = str(failure.value)
    assert words in message
    assert "1 record is kept in memory" in message
    assert "\n" not in message
    assert writer.path.read_bytes() == whole
    monkeypatch.undo()
    writer.append(ended(2))
    assert trial_ids(read_study(tmp_path)) == [1, 2]


def test_a_torn_line_that_could_not_be_cut_off_is_cut_off_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = StudyWriter(tmp_path)
    writer.append(opened())
    real_write = os.write

    def half_write(fd: int, data: bytes) -> int:
        real_write(fd, data[: len(data) // 2])
        raise OSError(errno.EIO, "fault")

    def no_cut(_fd: int, _length: int) -> None:
        raise OSError(errno.EIO, "fault")

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", half_write)
        broken.setattr(os, "ftruncate", no_cut)
        with pytest.raises(StoreWriteError):
            writer.append(ended(1))
    writer.append(ended(2))
    contents = read_study(tmp_path)
    assert trial_ids(contents) == [1, 2]
    assert contents.problems == ()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:10]))
    writer = StudyWriter(tmp_path)
    writer.append(opened())
    writer.append(ended(1))
    monkeypatch.undo()
    contents = read_study(tmp_path)
    assert trial_ids(contents) == [1]
    assert contents.problems == ()


def test_closing_writes_what_can_be_written_by_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = StudyWriter(tmp_path)
    writer.append(opened())
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda _fd, _data: 0)
        with pytest.raises(StoreWriteError):
            writer.append(ended(1))
        writer.close()
    assert writer.unsaved == 1
    writer.close()
    assert trial_ids(read_study(tmp_path)) == [1]


def test_a_file_that_may_not_grow_keeps_its_whole_lines(tmp_path: Path) -> None:
    """A real limit of the kernel, which writes the part of a line that fits."""
    code = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, resource.RLIM_INFINITY))
        writer = StudyWriter(Path(sys.argv[1]))
        writer.append(opened())
        failures = 0
        for n in range(1, 31):
            try:
                writer.append(ended(n))
            except StoreWriteError as error:
                failures += 1
                assert "ulimit" in str(error), error
        assert failures and writer.unsaved == failures, (failures, writer.unsaved)
        assert read_study(Path(sys.argv[1])).problems == ()
        assert writer.path.read_bytes().endswith(b"}\\n")
        print(failures)
        sys.stdin.readline()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        writer.append(ended(31))
    """
    process = run_program(code, str(tmp_path))
    assert process.stdout is not None
    failures = int(process.stdout.readline())
    assert trial_ids(read_study(tmp_path)) == list(range(1, 31 - failures))
    process.communicate("go\n", timeout=30)
    assert process.returncode == 0
    assert trial_ids(read_study(tmp_path)) == list(range(1, 32))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.privileged
def test_a_full_disk_loses_nothing(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 100_000)
    study = small_disk / "study"
    writer = StudyWriter(study)
    writer.append(opened())
    failures, message = 0, ""
    for trial_id in range(1, 61):
        try:
            writer.append(ended(trial_id))
        except StoreWriteError as error:
            failures += 1
            message = str(error)
    assert failures
    assert "No space left on device" in message
    assert writer.unsaved == failures
    contents = read_study(study)
    assert contents.problems == ()
    assert trial_ids(contents) == list(range(1, 61 - failures))
    ballast.unlink()
    writer.append(ended(61))
    assert writer.unsaved == 0
    assert trial_ids(read_study(study)) == list(range(1, 62))


@pytest.mark.privileged
def test_a_study_deleted_on_a_full_disk_comes_back_when_there_is_room(small_disk: Path) -> None:
    study = small_disk / "study"
    first = StudyWriter(study)
    first.append(opened())
    first.append(ended(1))
    first.close()
    writer = StudyWriter(study, read_study(study).records)
    shutil.rmtree(study)
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        for _ in range(1000):
            file.write(b"x" * 4096)
    for record in (opened(), ended(2)):
        with pytest.raises(StoreWriteError, match="No space left"):
            writer.append(record)
    assert read_study(study).generations == ()
    ballast.unlink()
    writer.append(ended(3))
    assert trial_ids(read_study(study)) == [1, 2, 3]
