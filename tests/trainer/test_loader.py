"""Windows of batches over epochs, the same samples for all loader settings, and loaders that do as they like."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.describe import describe_exception
from gputune_tui.trainer.faults import NoData, SettingsNotApplicable
from gputune_tui.trainer.loader import Batches, build_batches, loader_arguments, shm_warning
from gputune_tui.trainer.workload import AdaptedWorkload, WorkloadFault
from tests.trainer.conftest import LINEAR, LoadFile

DEADLINE_S = 30.0


class Numbers(Dataset[torch.Tensor]):
    """`n` samples, each holding its own number."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.tensor([float(i)])


class Counting:
    """A workload over `Numbers`."""

    def __init__(self, n: int = 10) -> None:
        self.n = n

    def build_dataset(self) -> Dataset[torch.Tensor]:
        return Numbers(self.n)


@pytest.fixture
def open_batches() -> Iterator[Any]:
    """Build batches and shut their workers down at the end: open_batches(workload, seed=0, device="cpu", **knobs)."""
    opened: list[Batches] = []

    def build(workload: Any, seed: int = 0, device: str = "cpu", **knobs: Any) -> Batches:
        adapted = workload if isinstance(workload, AdaptedWorkload) else AdaptedWorkload(workload, "wl", "Workload", "")
        opened.append(build_batches(adapted, TrainSettings(**knobs), device, seed))
        return opened[-1]

    yield build
    for batches in opened:
        batches.close()


def draw(batches: Batches, accumulation: int, count: int) -> list[list[list[int]]]:
    """The numbers of `count` windows, by batch."""
    windows = batches.windows(accumulation)
    return [[[int(x) for x in batch.flatten()] for batch in next(windows)] for _ in range(count)]


def flat(windows: list[list[list[int]]]) -> list[int]:
    return [number for window in windows for batch in window for number in batch]


# Windows over epochs


def test_windows_end_with_the_epoch_and_count_real_samples(open_batches: Any) -> None:
    batches = open_batches(Counting(10), micro_batch_size=4)
    windows = draw(batches, 2, 4)
    assert [[len(b) for b in window] for window in windows] == [[4, 4], [2], [4, 4], [2]]
    assert sorted(flat(windows[:2])) == sorted(flat(windows[2:])) == list(range(10))
    assert batches.epoch == 2


def test_an_epoch_that_ends_with_a_window_makes_no_empty_one(open_batches: Any) -> None:
    windows = draw(open_batches(Counting(8), micro_batch_size=2), 2, 6)
    assert [[len(b) for b in window] for window in windows] == [[2, 2]] * 6


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_every_epoch_holds_every_sample_once(length: int, micro: int, accumulation: int) -> None:
    micro = min(micro, length)
    workload = AdaptedWorkload(Counting(length), "wl", "Workload", "")
    batches = build_batches(workload, TrainSettings(micro_batch_size=micro), "cpu", 0)
    per_epoch = -(-length // micro)
    windows = draw(batches, accumulation, 2 * -(-per_epoch // accumulation))
    assert all(1 <= len(window) <= accumulation for window in windows)
    numbers = flat(windows)
    assert sorted(numbers[:length]) == sorted(numbers[length:]) == list(range(length))


def test_batches_are_fetched_only_when_asked_for(open_batches: Any) -> None:
    fetched: list[int] = []

    class Watched(Counting):
        def build_dataset(self) -> Any:
            class Dataset(Numbers):
                def __getitem__(self, i: int) -> torch.Tensor:
                    fetched.append(i)
                    return super().__getitem__(i)

            return Dataset(6)

    window = next(open_batches(Watched(), micro_batch_size=2).windows(3))
    assert fetched == []
    next(window)
    assert len(fetched) == 2
    next(window)
    assert len(fetched) == 4


# The same samples in the same order


def test_the_order_depends_on_the_seed_alone(open_batches: Any) -> None:
    def order(seed: int = 0, accumulation: int = 1, **knobs: Any) -> list[int]:
        batches = open_batches(Counting(12), seed=seed, **knobs)
        numbers: list[int] = []
        windows = batches.windows(accumulation)
        while len(numbers) < 36:  # three epochs
            numbers += [int(x) for batch in next(windows) for x in batch.flatten()]
        return numbers[:36]

    first = order(micro_batch_size=4)
    assert first[:12] != first[12:24] != sorted(first[12:24])
    assert order(micro_batch_size=2, accumulation=2) == first
    assert order(micro_batch_size=1, accumulation=4) == first
    assert order(micro_batch_size=5) == first
    assert order(micro_batch_size=4, num_workers=1) == first
    assert order(micro_batch_size=4, num_workers=2, prefetch_factor=3) == first
    assert order(micro_batch_size=4, num_workers=2, persistent_workers=True) == first
    assert order(micro_batch_size=4, seed=1) != first


# What torch is told


def arguments(device: str = "cpu", workload: object = None, **knobs: Any) -> dict[str, Any]:
    adapted = AdaptedWorkload(workload or Counting(), "wl", "Workload", "")
    return loader_arguments(adapted, TrainSettings(**knobs), device, 0)


def test_without_workers_nothing_is_prefetched_or_kept() -> None:
    given = arguments(num_workers=0, prefetch_factor=4, persistent_workers=True)
    assert "prefetch_factor" not in given
    assert "persistent_workers" not in given
    DataLoader(Numbers(3), **given)  # torch takes it


def test_with_workers_the_knobs_are_passed() -> None:
    given = arguments(num_workers=2, prefetch_factor=4, persistent_workers=True)
    assert (given["prefetch_factor"], given["persistent_workers"]) == (4, True)
    assert given["multiprocessing_context"] == "fork"
    assert arguments(num_workers=2)["prefetch_factor"] == 2


def test_pinning_is_for_cuda_alone() -> None:
    assert arguments("cpu", pin_memory=True)["pin_memory"] is False
    assert arguments("cuda", pin_memory=True)["pin_memory"] is True


def test_prefetched_batches_are_counted(open_batches: Any) -> None:
    assert open_batches(Counting(8), num_workers=0).prefetched_batches == 0
    assert open_batches(Counting(8), num_workers=2).prefetched_batches == 4
    assert open_batches(Counting(8), num_workers=2, prefetch_factor=5).prefetched_batches == 10


def test_a_lambda_collates_and_starts_workers(open_batches: Any) -> None:
    class Lambdas(Counting):
        collate_fn = staticmethod(lambda samples: [(sample, "text") for sample in samples])
        worker_init_fn = staticmethod(lambda worker: os.environ.__setitem__("USERS_INIT", str(worker)))

        def build_dataset(self) -> Any:
            class Dataset(Numbers):
                def __getitem__(self, i: int) -> torch.Tensor:
                    return torch.tensor([i, int(os.environ.get("USERS_INIT", "-1"))])

            return Dataset(8)

    for workers in (0, 2):
        batch = next(iter(next(open_batches(Lambdas(), micro_batch_size=4, num_workers=workers).windows(1))))
        assert [text for _, text in batch] == ["text"] * 4
        assert {int(sample[1]) for sample, _ in batch} == ({0} if workers else {-1})


# Data that is not there


def test_an_empty_dataset_is_no_data(open_batches: Any) -> None:
    with pytest.raises(NoData, match="wl: the dataset is empty"):
        open_batches(Counting(0))


def test_a_micro_batch_beyond_the_dataset_says_how_many_there_are(open_batches: Any) -> None:
    with pytest.raises(SettingsNotApplicable, match="micro_batch_size=128 is larger than the dataset, which has 100"):
        open_batches(Counting(100), micro_batch_size=128)
    open_batches(Counting(100), micro_batch_size=100)


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("None", "returned NoneType, which cannot be indexed; a Dataset or an IterableDataset is wanted"),
        ("iter([1, 2])", "returned list_iterator, which cannot be indexed"),
        ("DataLoader([1, 2])", "returned DataLoader, which cannot be indexed; name it build_loader"),
        ("Dataset()", "returned Dataset, which has no __len__"),
    ],
)
def test_what_is_no_dataset_is_named(load_file: LoadFile, open_batches: Any, returned: str, words: str) -> None:
    workload = load_file(LINEAR.replace("return Numbers()", f"return {returned}"))
    with pytest.raises(WorkloadFault, match=rf"build_dataset \(wl.py:\d+\) {words}"):
        open_batches(workload)


def test_a_length_that_raises_is_the_users_exception(load_file: LoadFile, open_batches: Any) -> None:
    workload = load_file(LINEAR.replace("return self.n\n", "raise OSError('disk gone')\n"))
    with pytest.raises(OSError, match="disk gone") as caught:
        open_batches(workload)
    assert "wl.py:" in describe_exception(caught.value)


# Iterable datasets

STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        yield from (torch.tensor([float(i)]) for i in range(first, 12, step))
"""
STREAMING = STREAM + LINEAR.replace("return Numbers()", "return Stream()")


@pytest.mark.parametrize(
    "length",
    ["", "    def __len__(self):\n        raise TypeError('no')\n", "    def __len__(self):\n        return 3\n"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_runs_whatever_its_length_says(
    load_file: LoadFile, open_batches: Any, length: str, workers: int
) -> None:
    workload = load_file(
        STREAMING.replace("class Stream(IterableDataset):\n", f"class Stream(IterableDataset):\n{length}")
    )
    batches = open_batches(workload, micro_batch_size=3, num_workers=workers)
    numbers = flat(draw(batches, 2, 4))
    assert sorted(numbers[:12]) == sorted(numbers[12:]) == list(range(12))
    assert batches.notes == []


def test_a_stream_that_ignores_its_workers_number_is_noted(load_file: LoadFile, open_batches: Any) -> None:
    ignoring = STREAMING.replace("if worker else", "if False else")
    batches = open_batches(load_file(ignoring), micro_batch_size=3, num_workers=2)
    draw(batches, 1, 4)
    assert batches.notes == [
        "duplicate samples: all 2 loader workers yield the same ones; "
        "the iterable dataset must heed torch.utils.data.get_worker_info()"
    ]


def test_constant_data_is_not_taken_for_duplicates(load_file: LoadFile, open_batches: Any) -> None:
    constant = STREAMING.replace("torch.tensor([float(i)])", "torch.zeros(1)")
    batches = open_batches(load_file(constant), micro_batch_size=3, num_workers=2)
    draw(batches, 1, 4)
    assert batches.notes == []


def test_a_stream_that_runs_dry_says_so(load_file: LoadFile, open_batches: Any) -> None:
    once = "ITEMS = iter(range(4))\n" + STREAMING.replace("range(first, 12, step)", "ITEMS")
    windows = open_batches(load_file(once), micro_batch_size=2).windows(2)
    assert len(list(next(windows))) == 2
    with pytest.raises(NoData, match="no batch in its second epoch; an iterable must start anew"):
        list(next(windows))


def test_a_stream_that_yields_nothing_is_no_data(load_file: LoadFile, open_batches: Any) -> None:
    nothing = STREAMING.replace("range(first, 12, step)", "[]")
    with pytest.raises(NoData, match="the loader gave no batch in a whole epoch"):
        list(next(open_batches(load_file(nothing)).windows(1)))


@pytest.mark.parametrize(("workers", "whose"), [(0, "the dataset, which has 12"), (2, "share of the dataset.* has 6")])
def test_a_stream_shorter_than_a_micro_batch_says_how_much_there_is(
    load_file: LoadFile, open_batches: Any, workers: int, whose: str
) -> None:
    batches = open_batches(load_file(STREAMING), micro_batch_size=16, num_workers=workers)
    with pytest.raises(SettingsNotApplicable, match=f"micro_batch_size=16 is larger than .*{whose} samples"):
        list(next(batches.windows(1)))


# A loader of the workload's own


def with_loader(body: str, parameters: str = "**settings") -> str:
    return LINEAR + f"    def build_loader(self, {parameters}):\n        {body}\n"


def test_an_own_loader_takes_the_settings(load_file: LoadFile, open_batches: Any) -> None:
    workload = load_file(with_loader("return DataLoader(Numbers(12), **settings)"))
    batches = open_batches(workload, micro_batch_size=3, num_workers=1, persistent_workers=True)
    assert [len(window) for window in draw(batches, 2, 2)] == [2, 2]
    assert batches.prefetched_batches == 2
    assert batches.notes == []


def test_an_own_loader_gets_only_what_it_names(load_file: LoadFile, open_batches: Any) -> None:
    body = "return DataLoader(Numbers(12), batch_size, shuffle=shuffle, num_workers=num_workers, drop_last=drop_last)"
    workload = load_file(with_loader(body, "batch_size, shuffle, num_workers, drop_last"))
    batches = open_batches(workload, micro_batch_size=5, num_workers=2)
    windows = draw(batches, 1, 3)
    assert [len(window[0]) for window in windows] == [5, 5, 2]
    assert flat(windows) != list(range(12))


def test_an_own_batch_sampler_closes_the_batch_axis(load_file: LoadFile, open_batches: Any) -> None:
    body = "return DataLoader(Numbers(12), batch_sampler=[[0, 1, 2, 3], [4, 5], [6, 7, 8, 9]])"
    workload = load_file(with_loader(body, "num_workers"))
    with pytest.raises(SettingsNotApplicable, match=r"the batch axis is not available.* of 4 samples, not 8; use mic"):
        list(next(open_batches(workload, micro_batch_size=8).windows(1)))
    windows = draw(open_batches(workload, micro_batch_size=4), 2, 2)
    assert [[len(batch) for batch in window] for window in windows] == [[4, 2], [4]]


def test_an_own_loader_over_too_few_samples_says_how_many_there_are(load_file: LoadFile, open_batches: Any) -> None:
    workload = load_file(with_loader("return DataLoader(Numbers(10), batch_size)", "batch_size"))
    with pytest.raises(SettingsNotApplicable, match="micro_batch_size=16 is larger than the dataset, which has 10"):
        list(next(open_batches(workload, micro_batch_size=16).windows(1)))


def test_an_own_loader_that_drops_its_only_batch(load_file: LoadFile, open_batches: Any) -> None:
    workload = load_file(with_loader("return DataLoader(Numbers(10), batch_size, drop_last=True)", "batch_size"))
    with pytest.raises(NoData, match="drops its only batch: 10 samples, batches of 16, drop_last=True"):
        list(next(open_batches(workload, micro_batch_size=16).windows(1)))


def test_workers_of_the_loaders_own_choice_are_told(load_file: LoadFile, open_batches: Any) -> None:
    workload = load_file(with_loader("return DataLoader(Numbers(12), batch_size, num_workers=1)", "batch_size"))
    assert open_batches(workload, num_workers=0).notes == ["the workload's own loader has num_workers=1"]
    with pytest.raises(SettingsNotApplicable, match=r"num_workers axis is not available.* has num_workers=1, not 2"):
        open_batches(workload, num_workers=2)


def test_any_iterable_can_be_the_loader(load_file: LoadFile, open_batches: Any) -> None:
    workload = load_file(with_loader("return [torch.zeros(2, 1)] * 3", "batch_size"))
    assert [len(window) for window in draw(open_batches(workload, micro_batch_size=2), 2, 3)] == [2, 1, 2]
    wrong = load_file(with_loader("return 3", "batch_size"), name="wrong.py")
    with pytest.raises(WorkloadFault, match=r"build_loader \(wrong.py:\d+\) returned int, not a DataLoader"):
        open_batches(wrong)


# Batches that are not of the size asked for


def test_a_batch_that_cannot_be_counted_asks_for_batch_size_of(load_file: LoadFile, open_batches: Any) -> None:
    flattened = LINEAR + "    def collate_fn(self, samples):\n        return torch.cat(samples + samples)\n"
    with pytest.raises(WorkloadFault, match="micro_batch_size=4 seems to hold 8 samples; give the workload batch_size"):
        list(next(open_batches(load_file(flattened), micro_batch_size=4).windows(1)))
    told = flattened + "    def batch_size_of(self, batch):\n        return len(batch) // 2\n"
    batches = open_batches(load_file(told, name="told.py"), micro_batch_size=4)
    list(next(batches.windows(1)))
    assert batches.notes == []


def test_a_collate_that_leaves_samples_out_is_noted(load_file: LoadFile, open_batches: Any) -> None:
    dropping = LINEAR + "    def collate_fn(self, samples):\n        return torch.stack(samples[1:])\n"
    batches = open_batches(load_file(dropping), micro_batch_size=4)
    assert len(draw(batches, 1, 1)[0][0]) == 3
    assert [note.split(":")[0] for note in batches.notes] == [
        "the first batch of micro_batch_size=4 seems to hold 3 samples"
    ]


# Exceptions out of workers

FAILS_AT_7 = """
class Broken(Numbers):
    def __getitem__(self, i):
        if i == 7:
            {raising}
        return super().__getitem__(i)
"""


@pytest.mark.parametrize(
    ("definition", "raising", "words"),
    [
        ("", "raise ValueError('bad label 9')", "ValueError: bad label 9"),
        ("", "return {}['gone']", "KeyError: 'gone'"),
        (
            "class E(Exception):\n  def __init__(self, *, index): super().__init__(f'sample {index}')\n",
            "raise E(index=i)",
            "E: sample 7",
        ),
        (
            "class E(Exception):\n  def __init__(self, index, path): super().__init__(f'{path}:{index}')\n",
            "raise E(i, 'x')",
            "E: x:7",
        ),
        (
            "class E(Exception):\n  message = 'm'\n  def __init__(self, message): self.kept = message\n"
            "  def __str__(self): return 'decode error'\n",
            "raise E('png')",
            "E: decode error",
        ),
        (
            "class E(Exception):\n  def __str__(self): raise RuntimeError\n",
            "raise E('x')",
            "E: <exception str() failed>",
        ),
        (
            "class E(Exception):\n  def __init__(self, text): super().__init__('in my words: ' + text)\n",
            "raise E('x')",
            "E: in my words: x",
        ),
        ("", "raise ValueError('first line\\nhint: the second')", "ValueError: first line hint: the second"),
        ("", "try: 1 / 0\n            except ZeroDivisionError as e: raise OSError('later') from e", "OSError: later"),
    ],
)
def test_an_exception_in_a_worker_keeps_its_name_text_and_place(
    load_file: LoadFile, open_batches: Any, definition: str, raising: str, words: str
) -> None:
    source = definition + LINEAR.replace("class Workload", FAILS_AT_7.format(raising=raising) + "\nclass Workload")
    workload = load_file(source.replace("return Numbers()", "return Broken()"), name="mein datensatz.py")
    described = []
    for workers in (0, 2):
        batches = open_batches(workload, micro_batch_size=1, num_workers=workers)
        with pytest.raises(Exception) as caught:  # noqa: PT011  # of any type: that is the point
            draw(batches, 1, 10)
        described.append(describe_exception(caught.value))
        batches.close()
    assert described[1].startswith(words), described
    for text in described:
        assert "(mein datensatz.py:" in text
        assert text.endswith("in __getitem__)")
        assert "Caught" not in text
    assert described[0].partition(" (mein")[2] == described[1].partition(" (mein")[2]


# Workers and their ends


def children() -> set[int]:
    """Direct children of this process that are no zombies."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


def until(condition: Any) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


@pytest.mark.parametrize("persistent", [False, True])
def test_closing_ends_the_workers(open_batches: Any, persistent: bool) -> None:
    before = children()
    batches = open_batches(Counting(20), micro_batch_size=2, num_workers=2, persistent_workers=persistent)
    next(iter(next(batches.windows(1))))
    assert len(children() - before) == 2
    batches.close()
    assert until(lambda: not children() - before)


@pytest.mark.parametrize("own_loader", [False, True])
def test_workers_end_with_a_trial_that_is_killed(tmp_path: Path, own_loader: bool) -> None:
    class Slow(Counting):
        def build_dataset(self) -> Any:
            class Dataset(Numbers):
                def __getitem__(self, i: int) -> torch.Tensor:
                    (tmp_path / str(os.getpid())).touch()
                    time.sleep(600)
                    return torch.zeros(1)

            return Dataset(8)

    class OwnLoader(Slow):
        def build_loader(self, batch_size: int, num_workers: int) -> Any:
            return DataLoader(self.build_dataset(), batch_size, num_workers=num_workers)

    trial = os.fork()
    if trial == 0:
        workload = AdaptedWorkload(OwnLoader() if own_loader else Slow(), "wl", "Workload", "")
        next(iter(next(build_batches(workload, TrainSettings(num_workers=2), "cpu", 0).windows(1))))
        os._exit(0)
    assert until(lambda: len(list(tmp_path.iterdir())) == 2)
    os.kill(trial, signal.SIGKILL)
    os.waitpid(trial, 0)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    try:
        assert until(lambda: not any(running(pid) for pid in workers))
    finally:
        for pid in filter(running, workers):
            os.kill(pid, signal.SIGKILL)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_workers_are_free_of_the_trials_cap_on_memory(open_batches: Any) -> None:
    import resource

    class Limits(Counting):
        def build_dataset(self) -> Any:
            class Dataset(Numbers):
                def __getitem__(self, i: int) -> torch.Tensor:
                    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
                    return torch.tensor([float(soft == hard)])

            return Dataset(4)

    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1 << 40, before[1]))
    try:
        batch = next(iter(next(open_batches(Limits(), num_workers=1).windows(1))))
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] == 1 << 40
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert batch.item() == 1.0


# Shared memory


def test_shared_memory_is_compared_with_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 64 << 20
    result = os.statvfs_result((4096, 4096, 16384, 16384, free // 4096, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: result)
    assert shm_warning(4, 1 << 20) is None
    assert shm_warning(6, 16 << 20) == "/dev/shm has 64.0 MiB free, the loader may want 115.2 MiB"


def test_a_missing_shared_memory_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(path: str) -> Any:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "statvfs", gone)
    assert shm_warning(4, 1 << 40) is None


def test_the_warning_reaches_the_notes(open_batches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result = os.statvfs_result((4096, 4096, 16384, 16384, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: result)
    with_workers = open_batches(Counting(8), micro_batch_size=2, num_workers=2)
    without = open_batches(Counting(8), micro_batch_size=2)
    for batches in (with_workers, without):
        draw(batches, 1, 1)
    assert with_workers.notes == ["/dev/shm has 0.0 MiB free, the loader may want 0.0 MiB"]
    assert without.notes == []
