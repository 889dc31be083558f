"""Every DataLoader that a script builds: which of them feeds the training, what it gives, and its arguments changed."""

from __future__ import annotations

import hashlib
import inspect
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.distributed import DistributedSampler

from gputune_tui.domain.script import LoaderFacts
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.batch import samples_in
from gputune_tui.trainer.describe import is_users_file
from gputune_tui.trainer.loader import dataset_length, too_large
from gputune_tui.trainer.script.patches import Function, Patches

MOST_FRAMES = 24
"""Calls that tell one place where loaders are built from another; scripts under a framework have some ten of them."""
Refuse = Callable[[str], NoReturn]


@dataclass(eq=False)
class WatchedLoader:
    """One loader of the script and what it has given so far."""

    site: str
    place: str
    arguments: dict[str, Any]
    drop_last: bool = False
    """As the script wants it, in batches of its own size."""
    wanted_batch_size: int | None = None
    """The script's own, where it was given smaller ones."""
    is_derived: bool = False
    """Built by a framework from one that the script has built."""
    is_used: bool = False
    """It was iterated over."""
    fed_steps: int = 0
    """Optimizer steps before which it gave at least one batch."""
    batches: int = 0
    samples: int = 0
    batches_of_step: int = 0
    epochs_set: int = 0
    """Calls of its sampler's set_epoch."""
    loader: Any = field(default=None, repr=False)
    """Weak reference to the DataLoader."""

    def facts(self) -> LoaderFacts:
        """As it was built."""
        loader = self.loader()
        workers = int(self.arguments.get("num_workers") or 0)
        dataset = self.arguments.get("dataset")
        sampler = getattr(loader, "sampler", None)
        return LoaderFacts(
            place=self.place,
            site=self.site,
            num_workers=workers,
            prefetch_factor=int(loader.prefetch_factor or 2) if workers and loader is not None else None,
            pin_memory=bool(self.arguments.get("pin_memory")),
            persistent_workers=bool(self.arguments.get("persistent_workers")),
            samples=None if isinstance(dataset, IterableDataset) else dataset_length(sampler),
        )

    def sizes(self) -> list[int] | None:
        """Samples of each batch of an epoch that counts; None where the loader does not tell.

        Of smaller batches than the script asked for, those that its own last batch would not have had are left out.
        """
        loader = self.loader()
        batches = None if loader is None else loader.batch_sampler
        # A framework's loader has the batch sampler alone.
        total = dataset_length(getattr(batches, "sampler", None))
        if batches is None or type(batches) is not BatchSampler or total is None:
            return None
        size = int(batches.batch_size)
        if self.drop_last:
            unit = self.wanted_batch_size or size
            total -= total % unit
        sizes = [size] * (total // size)
        return [*sizes, total % size] if total % size else sizes


class LoaderWatch:
    """Replaces DataLoader's constructor and iteration; each loader keeps its class, and its arguments but those set.

    Args:
        wanted: values for the loader that feeds the training; empty to watch alone.
        site: names that loader (`LoaderFacts.site`); None where it is not known yet.
        refuse: ends the trial with the reason why a value cannot be set.
    """

    def __init__(self, wanted: dict[str, Any], site: str | None, refuse: Refuse) -> None:
        self.wanted = wanted
        self._site = site
        self._refuse = refuse
        self.loaders: list[WatchedLoader] = []
        self._of_loader: weakref.WeakKeyDictionary[Any, WatchedLoader] = weakref.WeakKeyDictionary()
        self._of_dataset: weakref.WeakValueDictionary[int, WatchedLoader] = weakref.WeakValueDictionary()
        self._watching: Patches | None = None
        self._samples = 0
        self._wait_s = 0.0
        self.keeps_loaders = False
        """Loaders are kept alive, to be looked at after the loop that used them."""
        self.must_watch = False
        """Batches are looked at to the end."""
        self.on_batch: Callable[[], None] = lambda: None
        self.on_epoch: Callable[[WatchedLoader], None] = lambda _loader: None
        self.on_exhausted: Callable[[WatchedLoader], None] = lambda _loader: None
        self.on_changed: Callable[[WatchedLoader], None] = lambda _loader: None

    def install(self, patches: Patches, watch_batches: bool) -> None:
        """Begin; `watch_batches`: also look at what they give."""
        patches.wrap(DataLoader, "__init__", self._constructor)
        patches.wrap(DataLoader, "__iter__", self._iteration)
        if "batch_size" in self.wanted:
            patches.wrap(DataLoader, "__len__", self._length)
        if watch_batches:
            self._watching = Patches()
            self._watching.wrap(_BaseDataLoaderIter, "__next__", self._next)
            self._watching.wrap(DistributedSampler, "set_epoch", self._set_epoch)

    def rest(self) -> None:
        """Batches need not be counted any more; they are still looked at where their number was changed."""
        if self.must_watch or self._watching is None:
            return
        self._watching.undo()

    def feeds_training(self, loader: WatchedLoader) -> bool:
        """Whether it is the one that the script trains on."""
        return loader.site == self._site

    def step_done(self) -> None:
        """An optimizer step is over: who fed it is known."""
        for loader in self.loaders:
            loader.fed_steps += loader.batches_of_step > 0
            loader.batches_of_step = 0

    def samples(self) -> int:
        """Taken so far from those that feed the training."""
        return self._samples

    def wait_s(self) -> float:
        """Seconds that the script has waited for those that feed the training."""
        return self._wait_s

    def training_loader(self) -> WatchedLoader | None:
        """The one that gave batches before most of the steps; of several alike the last, which wraps the others."""
        fed = [loader for loader in self.loaders if loader.fed_steps]
        return max(fed, key=lambda loader: loader.fed_steps) if fed else None

    def _constructor(self, original: Function) -> Function:
        signature = inspect.signature(original)

        def construct(loader: Any, *args: Any, **kwargs: Any) -> None:
            arguments = dict(signature.bind(loader, *args, **kwargs).arguments)
            del arguments["self"]
            watched = self._watched(arguments)
            if self.feeds_training(watched) and not watched.is_derived:
                self._change(watched)
            original(loader, **watched.arguments)
            watched.loader = (lambda: loader) if self.keeps_loaders else weakref.ref(loader)
            self._of_loader[loader] = watched
            self._of_dataset[id(arguments.get("dataset"))] = watched
            # A script may build one for every epoch.
            self.loaders = [*(known for known in self.loaders if known.loader() is not None), watched]

        return construct

    def _watched(self, arguments: dict[str, Any]) -> WatchedLoader:
        source = self._of_dataset.get(id(arguments.get("dataset")))
        if source is not None and _takes_over(arguments, source.loader()):
            # A framework builds its own loader from the script's and hands its arguments on.
            return WatchedLoader(
                source.site, source.place, arguments, source.drop_last, source.wanted_batch_size, is_derived=True
            )
        site, place = site_of_call()
        # Several may be built by one line, for training and validation, before the first is used.
        beside = [
            known
            for known in self.loaders
            if known.site.partition(".")[0] == site
            and not known.is_used
            and known.arguments.get("dataset") is not arguments.get("dataset")
        ]
        site = f"{site}.{len(beside)}" if beside else site
        return WatchedLoader(site, place, arguments, bool(arguments.get("drop_last")))

    def _change(self, watched: WatchedLoader) -> None:
        arguments, wanted = watched.arguments, self.wanted
        if not wanted:
            return
        if "batch_size" in wanted:
            self._change_batch_size(watched, wanted["batch_size"])
        arguments.update({name: value for name, value in wanted.items() if name != "batch_size"})
        if not arguments.get("num_workers"):
            arguments.update(num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)
            arguments["multiprocessing_context"] = None
        self.on_changed(watched)

    def _change_batch_size(self, watched: WatchedLoader, size: int) -> None:
        arguments = watched.arguments
        own = arguments.get("batch_size", 1)
        if arguments.get("batch_sampler") is not None or own is None:
            self._refuse(f"the loader at {watched.place} takes its batches from the script, so their size is set there")
        if own % size:
            self._refuse(f"the loader at {watched.place} has batches of {own}, which are no multiple of {size}")
        length = dataset_length(arguments["dataset"])
        if length is not None and length < size:
            self._refuse(too_large(size, length))
        watched.wanted_batch_size = own
        arguments["batch_size"] = size

    def _length(self, original: Function) -> Function:
        """Schedules are made for so many optimizer steps as the script has batches of its own size."""

        def length(loader: Any) -> int:
            watched = self._of_loader.get(loader)
            total = dataset_length(getattr(loader.batch_sampler, "sampler", None))
            if watched is None or watched.wanted_batch_size is None or total is None:
                return int(original(loader))
            whole, rest = divmod(total, watched.wanted_batch_size)
            return whole if watched.drop_last or not rest else whole + 1

        return length

    def _iteration(self, original: Function) -> Function:
        def iterate(loader: Any) -> Iterator[Any]:
            iterator = original(loader)
            watched = self._of_loader.get(loader)
            if watched is not None:
                watched.is_used = True
                iterator._gputune_watched = watched
                iterator._gputune_left = self._batches_that_count(watched)
                self.on_epoch(watched)
            return iterator  # type: ignore[no-any-return]  # torch is not followed

        return iterate

    def _batches_that_count(self, watched: WatchedLoader) -> int | None:
        """Batches after which an epoch ends; None where it ends by itself."""
        if watched.wanted_batch_size is None or not watched.drop_last:
            return None
        sizes = watched.sizes()
        return None if sizes is None else len(sizes)

    def _next(self, original: Function) -> Function:
        def following(iterator: Any) -> Any:
            watched = getattr(iterator, "_gputune_watched", None)
            if watched is None:
                return original(iterator)
            began = time.perf_counter()
            try:
                if iterator._gputune_left == 0:
                    raise StopIteration
                batch = original(iterator)
            except StopIteration:
                self.on_exhausted(watched)
                raise
            if iterator._gputune_left is not None:
                iterator._gputune_left -= 1
            samples = samples_in(batch) or 0
            watched.batches += 1
            watched.batches_of_step += 1
            watched.samples += samples
            if self.feeds_training(watched):
                self._samples += samples
                self._wait_s += time.perf_counter() - began
            self.on_batch()
            return batch

        return following

    def _set_epoch(self, original: Function) -> Function:
        def set_epoch(sampler: Any, epoch: int) -> None:
            for watched in self.loaders:
                loader = watched.loader()
                if loader is not None and loader.sampler is sampler:
                    watched.epochs_set += 1
            original(sampler, epoch)

        return set_epoch


def _takes_over(arguments: dict[str, Any], source: Any) -> bool:
    """Whether a loader with these arguments goes through the same batches as another one."""
    if source is None:
        return False
    sampler, batch_sampler = arguments.get("sampler"), arguments.get("batch_sampler")
    inner = getattr(batch_sampler, "batch_sampler", batch_sampler)
    return (inner is not None and inner is source.batch_sampler) or (sampler is not None and sampler is source.sampler)


def wanted_arguments(settings: TrainSettings, injected: Sequence[str]) -> dict[str, Any]:
    """DataLoader arguments that stand for the injected knobs; what depends on workers comes with them."""
    wanted: dict[str, Any] = {}
    if "micro_batch_size" in injected:
        wanted["batch_size"] = settings.micro_batch_size
    workers = {"num_workers", "prefetch_factor", "persistent_workers"}
    if workers & set(injected):
        wanted |= {name: getattr(settings, name) for name in sorted(workers)}
    if "pin_memory" in injected:
        wanted["pin_memory"] = settings.pin_memory
    return wanted


def site_of_call() -> tuple[str, str]:
    """What names the calls that lead here from outside of torch's loaders, and file:line of the script's own in them.

    Each run of a script comes by the same lines to the same loader, and by others to another.
    """
    frame: types.FrameType | None = sys._getframe(1)
    here, torchs = str(Path(__file__).parent), str(Path(inspect.getfile(DataLoader)).parent)
    calls: list[str] = []
    place = ""
    while frame is not None and len(calls) < MOST_FRAMES:
        path = frame.f_code.co_filename
        if not path.startswith((here, torchs)):
            calls.append(f"{path}:{frame.f_lineno}")
            if not place and is_users_file(path):
                place = f"{Path(path).name}:{frame.f_lineno}"
        frame = frame.f_back
    digest = hashlib.sha1("\n".join(calls).encode("utf-8", "surrogateescape"), usedforsecurity=False)
    return digest.hexdigest()[:16], place or "a library"
