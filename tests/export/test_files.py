"""Writing whole files or none."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputune_tui.errors import EnvironmentProblem, UsageError
from gputune_tui.export.files import write_atomically


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    path = tmp_path / "naïve é.yaml"
    write_atomically(path, "é\u2028\n", force=False)
    assert path.read_bytes() == "é\u2028\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == [path.name]


def test_an_existing_file_is_replaced_by_force_alone(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("old")
    path.chmod(0o640)
    with pytest.raises(UsageError, match="exists; use --force"):
        write_atomically(path, "new", force=False)
    assert path.read_text() == "old"
    write_atomically(path, "new", force=True)
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["g.yaml"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link, target = tmp_path / "link", tmp_path / "real" / "g.yaml"
    link.symlink_to(target)
    write_atomically(link, "first", force=False)
    assert target.read_text() == "first"
    with pytest.raises(UsageError, match="exists"):
        write_atomically(link, "second", force=False)
    write_atomically(link, "second", force=True)
    assert link.is_symlink()
    assert target.read_text() == "second"


def test_places_that_are_no_file(tmp_path: Path) -> None:
    for force in (False, True):
        with pytest.raises(UsageError, match="is a directory"):
            write_atomically(tmp_path, "x", force)
        with pytest.raises(UsageError, match="there is no directory"):
            write_atomically(tmp_path / "none" / "g.yaml", "x", force)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="choose another place"):
        write_atomically(tmp_path / "file" / "g.yaml", "x", force=True)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UsageError, match="choose another place"):
        write_atomically(tmp_path / "loop", "x", force=True)
    with pytest.raises(UsageError, match="choose another place"):
        write_atomically(tmp_path / ("x" * 300), "x", force=False)
    with pytest.raises(UsageError, match="choose another name"):
        write_atomically(Path("a\0b"), "x", force=False)
    assert sorted(os.listdir(tmp_path)) == ["file", "loop"]


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_atomically(Path(os.devnull), "x", force=False)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_failing_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.yaml"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentProblem, match="no space left on device"):
        write_atomically(path, "new", force=True)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["g.yaml"]


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "g.yaml", "new", force=False)
    assert os.listdir(tmp_path) == []


def test_text_from_odd_file_names_can_be_written(tmp_path: Path) -> None:
    write_atomically(tmp_path / "g.json", '"\udcff"', force=False)
    assert (tmp_path / "g.json").read_text("utf-8") == '"\\udcff"'


@pytest.mark.privileged
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.decode().strip()}")
    try:
        write_atomically(tmp_path / "g.yaml", "old", force=False)
        with pytest.raises(EnvironmentProblem, match="no space left on device; free some space"):
            write_atomically(tmp_path / "g.yaml", "x" * 200_000, force=True)
        assert (tmp_path / "g.yaml").read_text() == "old"
        assert os.listdir(tmp_path) == ["g.yaml"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
