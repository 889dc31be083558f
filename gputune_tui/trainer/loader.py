"""The loader knobs: the workload's data in windows of micro-batches, the same samples in the same order for all."""

from __future__ import annotations

import ctypes
import dataclasses
import inspect
import itertools
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.faults import NoData, SettingsNotApplicable, bytes_words
from gputune_tui.trainer.memory import lift_data_limit
from gputune_tui.trainer.workload import AdaptedWorkload, WorkloadFault

PR_SET_PDEATHSIG = 1
DEFAULT_PREFETCH = 2
SHM_RESERVE = 1.2
"""Shared memory wanted over the batches' own bytes (trial_engine.md section 5)."""


class Batches:
    """Endless windows over the epochs of one loader; it owns the workers."""

    def __init__(self, loader: Any, settings: TrainSettings, name: str, batch_size_of: Callable[[Any], int]) -> None:
        self.epoch = 0
        self.notes: list[str] = []
        self._loader = loader
        self._settings = settings
        self._name = name
        self._batch_size_of = batch_size_of
        self._iterator: Iterator[Any] | None = None
        self._in_epoch = 0
        self._checked = False

    @property
    def prefetched_batches(self) -> int:
        """Batches that the workers hold ready."""
        workers = int(getattr(self._loader, "num_workers", 0) or 0)
        return workers * int(getattr(self._loader, "prefetch_factor", None) or DEFAULT_PREFETCH) if workers else 0

    def windows(self, accumulation_steps: int) -> Iterator[Iterator[Any]]:
        """Each item yields the batches of one optimizer step, lazily, so that waiting is measured where it happens.

        A window never crosses the end of an epoch: the last one of an epoch may be shorter.
        """
        while True:
            yield self._window(accumulation_steps)

    def _window(self, accumulation_steps: int) -> Iterator[Any]:
        for taken in range(accumulation_steps):
            found, batch = self._next()
            if not found and taken:
                return
            if not found:
                found, batch = self._next()
                if not found:
                    raise NoData(self._no_data_words())
            yield batch

    def _next(self) -> tuple[bool, Any]:
        """The next batch of the epoch; (False, None) at its end, after which the next epoch begins."""
        if self._iterator is None:
            self._iterator, self._in_epoch = iter(self._loader), 0
        try:
            batch = next(self._iterator)
        except StopIteration:
            self._iterator = None
            self.epoch += 1
            return False, None
        self._in_epoch += 1
        if not self._checked:
            self._check_first(batch)
        return True, batch

    def _check_first(self, batch: Any) -> None:
        """The first batch tells whether the workload's loader obeys the batch knob and its workers have room."""
        self._checked = True
        size, wanted = self._batch_size_of(batch), self._settings.micro_batch_size
        length = _length(getattr(self._loader, "dataset", None))
        if size != wanted and (length is None or length >= wanted):
            raise SettingsNotApplicable(
                f"the batch axis is not available: the workload's loader gives batches of {size} samples, "
                f"not {wanted}; use micro_batch_size={size}, or let it take batch_size"
            )
        prefetched = self.prefetched_batches
        warning = shm_warning(prefetched, tensor_bytes(batch)) if prefetched else None
        if warning is not None:
            self.notes.append(warning)

    def _no_data_words(self) -> str:
        length = _length(getattr(self._loader, "dataset", None))
        size = getattr(self._loader, "batch_size", None)
        if length and getattr(self._loader, "drop_last", False) and size and length < size:
            return f"{self._name}: the loader drops its only batch: {length} samples, batches of {size}, drop_last=True"
        if length == 0:
            return f"{self._name}: the dataset is empty"
        return f"{self._name}: the loader gave no batch in a whole epoch"

    def close(self) -> None:
        """Shut the workers down now instead of at garbage collection."""
        iterator, self._iterator = self._iterator, None
        for holder in (iterator, getattr(self._loader, "_iterator", None)):
            shut_down = getattr(holder, "_shutdown_workers", None)
            if shut_down is not None:
                shut_down()


def build_batches(workload: AdaptedWorkload, settings: TrainSettings, device_kind: str, seed: int) -> Batches:
    """The workload's data under the loader knobs.

    Raises:
        SettingsNotApplicable: the micro-batch is larger than the dataset.
        NoData: the dataset is empty.
        WorkloadFault: build_dataset or build_loader returned something else.
    """
    arguments = loader_arguments(workload, settings, device_kind, seed)
    own_loader = workload.optional("build_loader")
    if own_loader is not None:
        loader = own_loader(**_accepted(own_loader, arguments))
        if not hasattr(loader, "__iter__"):
            raise WorkloadFault(f"{workload.name}: build_loader returned {type(loader).__name__}, not a loader")
    else:
        loader = _loader_over(workload, arguments, settings)
    return Batches(loader, settings, workload.name, workload.batch_size_of)


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
            "worker_init_fn": WorkerStart(os.getpid(), workload.optional("worker_init_fn")),
            # Said outright: in some processes and from Python 3.14 on the default starts workers in 3 s instead of 0.1.
            "multiprocessing_context": "fork",
        }
    return arguments


def _loader_over(workload: AdaptedWorkload, arguments: dict[str, Any], settings: TrainSettings) -> DataLoader[Any]:
    dataset = workload.user.build_dataset()
    if not isinstance(dataset, IterableDataset):
        length = _length(dataset)
        if length == 0:
            raise NoData(f"{workload.name}: the dataset is empty")
        if length is not None and length < settings.micro_batch_size:
            raise SettingsNotApplicable(
                f"micro_batch_size={settings.micro_batch_size} is larger than the dataset, which has {length} samples"
            )
        arguments = {**arguments, "shuffle": True}
    return DataLoader(dataset, **arguments)


def _accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Those arguments that the user's build_loader takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return arguments
    names = {p.name for p in parameters}
    return {name: value for name, value in arguments.items() if name in names}


class WorkerStart:
    """First lines of a loader worker: it ends with its trial, is free of the trial's cap, and draws its own numbers."""

    def __init__(self, trial_pid: int, users: Callable[[int], Any] | None) -> None:
        self._trial_pid = trial_pid
        self._users = users

    def __call__(self, worker_id: int) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._trial_pid:
            os._exit(1)
        lift_data_limit()
        seed = torch.initial_seed() % 2**32
        random.seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed)
        if self._users is not None:
            self._users(worker_id)


def _length(dataset: Any) -> int | None:
    """Samples of a dataset; None where it does not tell."""
    try:
        return len(dataset)
    except Exception:  # a user's __len__ may raise anything (not only TypeError); unknown is unknown
        return None


def move_batch(batch: Any, device: torch.device, non_blocking: bool = False, channels_last: bool = False) -> Any:
    """The batch with its tensors on the device; everything that is no tensor passes through and types are kept."""
    if isinstance(batch, Tensor):
        as_image = channels_last and batch.dim() == 4 and batch.is_floating_point()
        if as_image:
            return batch.to(device, non_blocking=non_blocking, memory_format=torch.channels_last)
        return batch.to(device, non_blocking=non_blocking)

    def moved(value: Any) -> Any:
        return move_batch(value, device, non_blocking, channels_last)

    if isinstance(batch, str | bytes) or batch is None:
        return batch
    if isinstance(batch, Mapping):
        values = {key: moved(value) for key, value in batch.items()}
        return values if type(batch) is dict else _rebuilt(batch, values)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(moved, batch))
    if isinstance(batch, tuple | list):
        return type(batch)(map(moved, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return _moved_dataclass(batch, moved)
    if hasattr(batch, "to") and callable(batch.to):
        return batch.to(device)
    return batch


def _rebuilt(batch: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    """A mapping of the user's own type with new values; its constructor may ask for anything, so it is copied."""
    import copy

    copied = copy.copy(batch)
    for key, value in values.items():
        copied[key] = value  # type: ignore[index]  # a mapping that cannot be written to raises in the user's own name
    return copied


def _moved_dataclass(batch: Any, moved: Callable[[Any], Any]) -> Any:
    import copy

    copied = copy.copy(batch)
    for field in dataclasses.fields(batch):
        object.__setattr__(copied, field.name, moved(getattr(batch, field.name)))
    return copied


def tensor_bytes(batch: Any) -> int:
    """Bytes of all tensors in a batch."""
    if isinstance(batch, Tensor):
        return int(batch.numel() * batch.element_size())
    if isinstance(batch, Mapping):
        return sum(map(tensor_bytes, batch.values()))
    if isinstance(batch, tuple | list):
        return sum(map(tensor_bytes, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return sum(tensor_bytes(getattr(batch, field.name)) for field in dataclasses.fields(batch))
    return 0


def shm_warning(prefetched_batches: int, batch_bytes: int) -> str | None:
    """The remark that /dev/shm may not hold what the workers keep ready; None where it does or is not there."""
    try:
        info = os.statvfs("/dev/shm")
    except OSError:
        return None
    free, wanted = info.f_frsize * info.f_bavail, int((prefetched_batches + 1) * batch_bytes * SHM_RESERVE)
    if free >= wanted:
        return None
    return f"/dev/shm has {bytes_words(free)} free, the loader may want {bytes_words(wanted)}"


def first_batches(batches: Batches, count: int) -> list[Any]:
    """The first `count` batches, for tests and predictions."""
    window = next(batches.windows(count))
    return list(itertools.islice(window, count))
