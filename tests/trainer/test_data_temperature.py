"""Which files a process and its children open, what comes from disk, and what dropping the page cache does."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.domain.job import Job
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trainer.data_temperature import DataWatch, disk_bytes, drop, file_systems
from gputune_tui.trainer.opened_files import DataFile, OpenedFiles
from tests.trainer.forked import in_fork

KIB = 1 << 10


def write(path: Path, size: int = KIB) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(random.randbytes(size))
    return path


def found_by(body: Callable[[OpenedFiles], Any], *named: str) -> dict[str, int]:
    """Sizes by path of the data files that are known after `body`, in a process whose hook ends with it."""

    def trial() -> Any:
        opened = OpenedFiles(named)
        body(opened)
        return {path: file.size_bytes for path, file in opened.data_files().items()}

    found: dict[str, int] = in_fork(trial)
    return found


def in_child(body: Callable[[], Any]) -> None:
    pid = os.fork()
    if pid == 0:
        body()
        os._exit(0)
    os.waitpid(pid, 0)


def read_all(files: list[Path]) -> None:
    for path in files:
        path.read_bytes()


def test_what_is_read_is_known_and_what_is_written_or_code_is_not(tmp_path: Path) -> None:
    a, code = write(tmp_path / "a.bin", 3 * KIB), write(tmp_path / "module.py")

    def body(_opened: OpenedFiles) -> None:
        a.read_bytes()
        code.read_bytes()
        write(tmp_path / "out.log")
        open("/proc/self/status").close()
        os.close(os.open(os.fsencode(a), os.O_RDONLY))

    assert found_by(body) == {str(a): 3 * KIB}


def test_what_workers_open_is_known_by_the_trial(tmp_path: Path) -> None:
    files = [write(tmp_path / "d" / f"{number}.bin") for number in range(40)]

    def body(_opened: OpenedFiles) -> None:
        for part in (files[:20], files[20:]):
            in_child(functools.partial(read_all, part))

    assert set(found_by(body)) == set(map(str, files))


def test_a_worker_never_waits_for_the_pipe(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 200)
    files = [write(folder / f"{'n' * 200}{number}.bin", 1) for number in range(3000)]

    def trial() -> Any:
        opened, told = OpenedFiles(), []
        for _ in range(3):
            in_child(lambda: [path.read_bytes() for path in files])
            opened.drain()
            told.append(sum(path.startswith(str(folder)) for path in opened._seen))
        return told

    first, second, third = in_fork(trial)
    assert 0 < first <= second == third == len(files)


def test_files_beside_those_that_were_opened_are_the_same_data(tmp_path: Path) -> None:
    files = [write(tmp_path / kind / f"{n}.jpg") for kind in ("cat", "dog", "emu") for n in range(4)]
    write(tmp_path / "cat" / "labels.txt")
    other = write(tmp_path / "elsewhere.jpg")

    def body(_opened: OpenedFiles) -> None:
        for path in (files[0], files[1], files[4]):
            path.read_bytes()

    found = found_by(body)
    assert set(found) == set(map(str, files))
    assert str(other) not in found


def test_one_file_alone_says_nothing_of_its_neighbours(tmp_path: Path) -> None:
    only = write(tmp_path / "tokens.bin")
    write(tmp_path / "other.bin")
    assert set(found_by(lambda _opened: only.read_bytes())) == {str(only)}


def test_a_mapped_file_that_no_event_told_of_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "shard.arrow", 8 * KIB)

    def body(opened: OpenedFiles) -> None:
        with opened.not_data(), path.open("rb") as file:  # as native code would
            opened.kept = mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)  # type: ignore[attr-defined]

    assert found_by(body) == {str(path): 8 * KIB}


def test_a_folder_that_the_workload_was_given_stands_in_where_nothing_was_seen(tmp_path: Path) -> None:
    files = [write(tmp_path / "data" / name / "x.rec") for name in ("a", "b")]
    assert set(found_by(lambda _opened: None, str(tmp_path / "data"), "tiny")) == set(map(str, files))


def test_weights_that_the_model_is_built_from_are_no_data(tmp_path: Path) -> None:
    weights = write(tmp_path / "weights.pt")

    def body(opened: OpenedFiles) -> None:
        with opened.not_data():
            weights.read_bytes()

    assert found_by(body) == {}


def test_a_name_means_what_it_meant_when_it_was_opened_though_the_folder_is_gone(tmp_path: Path) -> None:
    kept, folder = write(tmp_path / "kept" / "a.bin"), tmp_path / "gone"
    folder.mkdir()

    def trial() -> Any:
        os.chdir(kept.parent)
        data = DataWatch(Job("trial", WorkloadRef("w")))
        open("a.bin").close()
        os.chdir(folder)
        folder.rmdir()
        with contextlib.suppress(OSError):
            open("b.bin").close()
        record = data.record(7)
        return record and (record.files, record.data_bytes, record.dataset_samples)

    assert in_fork(trial) == [1, KIB, 7]


def test_a_record_that_fails_costs_the_trial_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def trial() -> Any:
        data = DataWatch(Job("trial", WorkloadRef("w")))
        monkeypatch.setattr(data.files, "data_files", lambda: 1 / 0)
        return data.record(None)

    assert in_fork(trial) is None


def on_disk(path: Path) -> bool:
    return not file_systems({str(path): DataFile(0, 0)})[0].endswith(("tmpfs", "ramfs", "overlay"))


def test_a_cold_trial_reads_from_disk_again_and_again(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{number}.bin", 256 * KIB) for number in range(8)]
    if not on_disk(tmp_path):
        pytest.skip("the page cache of this file system cannot be dropped")

    def trial() -> Any:
        counts = []
        for cold in (False, True):
            watch = DataWatch(Job("trial", WorkloadRef("x"), host_memory_bytes=1, cold=cold))
            for _ in range(2):
                for path in files:
                    path.read_bytes()
                assert watch.drop_page_cache() is cold
                watch.begin()
                in_child(lambda: [path.read_bytes() for path in files])
                watch.end(8)
            record = watch.record(8)
            counts.append(record and record.disk_bytes)
        return counts

    warm, cold = in_fork(trial)
    assert warm < 256 * KIB
    assert cold >= 2 * 8 * 256 * KIB


def test_what_the_kernel_does_not_count_is_unknown(tmp_path: Path) -> None:
    assert disk_bytes(tmp_path) is None
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "io").write_text("rchar: 5\nread_bytes: 4096\n")
    assert disk_bytes(tmp_path) == 4096


def test_a_file_that_cannot_be_opened_stays(tmp_path: Path) -> None:
    drop(str(tmp_path / "gone"), sync=True)


MOUNTS = """21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:5 / /dev/shm rw shared:3 - tmpfs tmpfs rw
23 21 0:6 / /data\\040set rw - nfs4 server:/x rw
24 23 0:7 / /data\\040set rw - lustre server:/y rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/home/u/a.bin", "ext4"), ("/dev/shm/a", "tmpfs"), ("/data set/a", "lustre"), ("/data", "ext4")],
)
def test_the_file_system_is_that_of_the_nearest_mount(tmp_path: Path, path: str, expected: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert file_systems({path: DataFile(1, 1)}, mounts) == (expected,)


def test_without_a_list_of_mounts_the_file_system_is_unknown(tmp_path: Path) -> None:
    assert file_systems({"/a": DataFile(1, 1)}, tmp_path / "none") == ()


@given(st.text(max_size=200))
def test_no_text_at_all_breaks_the_list_of_mounts(text: str) -> None:
    class Mounts(type(Path())):  # type: ignore[misc]
        def read_text(self, *_: Any, **__: Any) -> str:
            return text

    assert isinstance(file_systems({"/a": DataFile(1, 1)}, Mounts("/x")), tuple)
