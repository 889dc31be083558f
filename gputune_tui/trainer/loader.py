"""The loader knobs: the workload's data in windows of micro-batches, the same samples in the same order for all."""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.batch import tensor_bytes
from gputune_tui.trainer.duplicates import DuplicateWatch
from gputune_tui.trainer.epoch_end import raised_by_the_user
from gputune_tui.trainer.faults import NoData, SettingsNotApplicable, bytes_words
from gputune_tui.trainer.memory import lift_data_limit
from gputune_tui.trainer.workload import AdaptedWorkload, WorkloadFault

PR_SET_PDEATHSIG = 1
DEFAULT_PREFETCH = 2
SHM_RESERVE = 1.2
"""Shared memory wanted over the batches' own bytes (trial_engine.md section 5)."""
_NO_MORE = object()


class Batches:
    """Endless windows over the epochs of one loader; it owns the workers."""

    def __init__(self, loader: Any, settings: TrainSettings, workload: AdaptedWorkload) -> None:
        self.epoch = 0
        """Epochs whose end has been met."""
        self.notes: list[str] = []
        """What the user should know about the data; grows while batches are drawn."""
        self.loader = loader
        """What gives the batches: a DataLoader, or whatever the workload built."""
        self._settings = settings
        self._workload = workload
        self._iterator: Iterator[Any] | None = None
        self._checked = False
        iterable = isinstance(getattr(loader, "dataset", None), IterableDataset)
        self._duplicates = DuplicateWatch(self.num_workers) if iterable and self.num_workers > 1 else None

    @property
    def num_workers(self) -> int:
        """Workers of the loader, whatever the knob says."""
        return int(getattr(self.loader, "num_workers", 0) or 0)

    @property
    def prefetched_batches(self) -> int:
        """Batches that the workers hold ready."""
        factor = getattr(self.loader, "prefetch_factor", None) or DEFAULT_PREFETCH
        return self.num_workers * int(factor)

    def windows(self, accumulation_steps: int) -> Iterator[Iterable[Any]]:
        """Each item holds the batches of one optimizer step.

        Several are given lazily, so that waiting is measured where it happens; a single one comes in a tuple, which
        costs a step of 1 ms less than a generator does. A window never crosses the end of an epoch: the last one of an
        epoch may be shorter.

        Raises:
            NoData: an epoch gave nothing.
            SettingsNotApplicable: the loader's batches are not those that the settings ask for.
        """
        epochs = iter(self._epoch, None)
        if accumulation_steps == 1:
            return zip(itertools.chain.from_iterable(epochs), strict=False)
        return self._windows(epochs, accumulation_steps)

    def _windows(self, epochs: Iterator[Iterator[Any]], accumulation_steps: int) -> Iterator[Iterator[Any]]:
        epoch: Iterator[Any] = iter(())

        def window() -> Iterator[Any]:
            nonlocal epoch
            for taken in range(accumulation_steps):
                batch = next(epoch, _NO_MORE)
                if batch is _NO_MORE and taken:
                    return
                if batch is _NO_MORE:
                    epoch = next(epochs)
                    batch = next(epoch)
                yield batch

        while True:
            yield window()

    def _epoch(self) -> Iterator[Any]:
        """The batches of an epoch, one at least."""
        iterator: Iterator[Any] | None = None
        is_empty = True
        while True:
            try:
                if iterator is None:
                    iterator = self._iterator = iter(self.loader)
                batch = next(iterator)
            except StopIteration as end:
                if (who := raised_by_the_user(end, self.loader)) is not None:
                    raise WorkloadFault(f"{self._workload.name}: {who}") from end
                break
            is_empty = False
            if not self._checked:
                self._check_first(batch)
            if self._duplicates is not None and self.epoch == 0:
                note = self._duplicates.see(batch)
                if note is not None:
                    self.notes.append(note)
            yield batch
        self._iterator = None
        self.epoch += 1
        if is_empty:
            raise NoData(self._no_data_words())

    def _check_first(self, batch: Any) -> None:
        """The first batch tells whether the batch knob is obeyed and whether the workers have room."""
        self._checked = True
        size, wanted = self._workload.batch_size_of(batch), self._settings.micro_batch_size
        if size != wanted:
            self._other_size(size, wanted)
        if self.num_workers:
            batches = self.prefetched_batches + self.num_workers
            warning = shm_warning(batches, tensor_bytes(batch))
            if warning is not None:
                self.notes.append(warning)

    def _other_size(self, size: int, wanted: int) -> None:
        dataset = getattr(self.loader, "dataset", None)
        length = dataset_length(dataset)
        if length is not None and size <= length < wanted:
            raise SettingsNotApplicable(too_large(wanted, length))
        if self._workload.optional("build_loader") is not None:
            raise SettingsNotApplicable(
                f"the batch axis is not available: the workload's loader gives batches of {size} samples, "
                f"not {wanted}; use micro_batch_size={size}, or let it take batch_size"
            )
        if size < wanted and isinstance(dataset, IterableDataset):
            whose = "a loader worker's share of the dataset" if self.num_workers > 1 else "the dataset"
            raise SettingsNotApplicable(f"micro_batch_size={wanted} is larger than {whose}, which has {size} samples")
        seems = f"the first batch of micro_batch_size={wanted} seems to hold {size} samples"
        if self._workload.optional("batch_size_of") is not None:
            self.notes.append(f"a batch of micro_batch_size={wanted} holds {size} samples, says batch_size_of")
        elif size < wanted and self._workload.optional("collate_fn") is not None:
            # A collate_fn may leave broken samples out; those that remain are counted.
            self.notes.append(f"{seems}: collate_fn left some out, or the workload needs batch_size_of(batch)")
        else:
            raise WorkloadFault(f"{self._workload.name}: {seems}; give the workload batch_size_of(batch)")

    def _no_data_words(self) -> str:
        name = self._workload.name
        dataset = getattr(self.loader, "dataset", None)
        length = dataset_length(dataset)
        size = getattr(self.loader, "batch_size", None)
        if length and size and length < size and getattr(self.loader, "drop_last", False):
            return f"{name}: the loader drops its only batch: {length} samples, batches of {size}, drop_last=True"
        if length == 0:
            return f"{name}: the dataset is empty"
        if self.epoch > 1:
            return f"{name}: the loader gave no batch in its second epoch; an iterable must start anew at each iter()"
        return f"{name}: the loader gave no batch in a whole epoch"

    def close(self) -> None:
        """Shut the workers down now instead of at garbage collection. Raises nothing: they end with the trial."""
        iterator, self._iterator = self._iterator, None
        for holder in (iterator, getattr(self.loader, "_iterator", None)):
            shut_down = getattr(holder, "_shutdown_workers", None)
            if shut_down is not None:
                with contextlib.suppress(Exception):  # a worker that died, or a loader class of the user's own
                    shut_down()


def build_batches(workload: AdaptedWorkload, settings: TrainSettings, device_kind: str, seed: int) -> Batches:
    """The workload's data under the loader knobs.

    Raises:
        SettingsNotApplicable: the micro-batch is larger than the dataset, or a knob that the own loader ignores.
        NoData: the dataset is empty.
        WorkloadFault: build_dataset or build_loader returned something else.
    """
    arguments = loader_arguments(workload, settings, device_kind, seed)
    own = workload.optional("build_loader")
    if own is None:
        return Batches(_loader_over(workload, arguments, settings, seed), settings, workload)
    loader = own(**_accepted(own, arguments))
    if not hasattr(loader, "__iter__"):
        raise workload.fault("build_loader", f"returned {type(loader).__name__}, not a DataLoader")
    if isinstance(loader, DataLoader) and loader.num_workers > 0:
        loader.worker_init_fn = WorkerStart(loader.worker_init_fn)
    batches = Batches(loader, settings, workload)
    _check_workers(batches, settings)
    return batches


def _check_workers(batches: Batches, settings: TrainSettings) -> None:
    """A workload's own loader may have workers of its own choice: no figure may carry another number of them."""
    have, wanted = batches.num_workers, settings.num_workers
    if have != wanted and wanted:
        raise SettingsNotApplicable(
            f"the num_workers axis is not available: the workload's loader has num_workers={have}, not {wanted}; "
            "let build_loader take num_workers"
        )
    if have != wanted:
        batches.notes.append(f"the workload's own loader has num_workers={have}")


def loader_arguments(workload: AdaptedWorkload, settings: TrainSettings, device_kind: str, seed: int) -> dict[str, Any]:
    """DataLoader's arguments for the knobs; what torch refuses without workers is left out."""
    arguments: dict[str, Any] = {
        "batch_size": settings.micro_batch_size,
        "num_workers": settings.num_workers,
        "pin_memory": settings.pin_memory and device_kind == "cuda",
        "generator": torch.Generator().manual_seed(seed),
    }
    collate = workload.optional("collate_fn")
    if collate is not None:
        arguments["collate_fn"] = collate
    if settings.num_workers > 0:
        arguments |= {
            "prefetch_factor": settings.prefetch_factor or DEFAULT_PREFETCH,
            "persistent_workers": settings.persistent_workers,
            "worker_init_fn": WorkerStart(workload.optional("worker_init_fn")),
            # Said outright: in some processes and from Python 3.14 on the default starts workers in 3 s instead of 0.1.
            "multiprocessing_context": "fork",
        }
    return arguments


def _loader_over(
    workload: AdaptedWorkload, arguments: dict[str, Any], settings: TrainSettings, seed: int
) -> DataLoader[Any]:
    dataset = workload.user.build_dataset()
    if isinstance(dataset, IterableDataset):
        return DataLoader(dataset, **arguments)
    if not hasattr(dataset, "__getitem__"):
        kind = type(dataset).__name__
        hint = (
            "name it build_loader" if isinstance(dataset, DataLoader) else "a Dataset or an IterableDataset is wanted"
        )
        raise workload.fault("build_dataset", f"returned {kind}, which cannot be indexed; {hint}")
    if not hasattr(dataset, "__len__"):
        raise workload.fault("build_dataset", f"returned {type(dataset).__name__}, which has no __len__")
    length = len(dataset)
    if length == 0:
        raise NoData(f"{workload.name}: the dataset is empty")
    if length < settings.micro_batch_size:
        raise SettingsNotApplicable(too_large(settings.micro_batch_size, length))
    # A generator of its own: the loader's also seeds its workers, once per epoch or once for all as they live on.
    order = torch.Generator().manual_seed(seed)
    return DataLoader(dataset, sampler=RandomSampler(dataset, generator=order), **arguments)


def too_large(micro_batch_size: int, length: int) -> str:
    """Why there is no batch of that size."""
    return f"micro_batch_size={micro_batch_size} is larger than the dataset, which has {length} samples"


def _accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Those arguments that the user's build_loader takes; what it names beyond DataLoader's knobs gets its usual value.

    `shuffle` is passed only where it is named: with `**settings` a loader over an iterable dataset would refuse it.
    """
    parameters = inspect.signature(function).parameters
    named = {**arguments, "shuffle": True, "drop_last": False}
    taken = {name: value for name, value in named.items() if name in parameters}
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return arguments | taken
    return taken


class WorkerStart:
    """First lines of a loader worker: it ends with its trial and is free of the trial's cap on memory."""

    def __init__(self, users: Callable[[int], Any] | None) -> None:
        self._users = users

    def __call__(self, worker_id: int) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        trial = multiprocessing.parent_process()
        if trial is not None and not trial.is_alive():  # it ended before the signal was asked for
            os._exit(1)
        lift_data_limit()
        if self._users is not None:
            self._users(worker_id)


def dataset_length(dataset: Any) -> int | None:
    """Samples of a dataset; None where there is none or it does not tell."""
    try:
        return len(dataset)
    except Exception:  # a user's __len__ may raise anything (not only TypeError); unknown is unknown
        return None


def shm_warning(batches: int, batch_bytes: int) -> str | None:
    """The remark that /dev/shm may not hold what the workers keep ready; None where it does or is not there.

    `batches` is workers x (prefetch + 1).
    """
    try:
        info = os.statvfs("/dev/shm")
    except OSError:
        return None
    free, wanted = info.f_frsize * info.f_bavail, int(batches * batch_bytes * SHM_RESERVE)
    if free >= wanted:
        return None
    return f"/dev/shm has {bytes_words(free)} free, the loader may want {bytes_words(wanted)}"
