"""Sets knobs in a script that has no flag for them, each where the script itself would set it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from gputune_tui.domain.job import ScriptOrder
from gputune_tui.domain.script import ACCUMULATION
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.faults import SettingsNotApplicable
from gputune_tui.trainer.optimizer import apply_optimizer_implementation
from gputune_tui.trainer.precision import grad_scaler, precision_note, prepare_precision
from gputune_tui.trainer.script.loaders import LoaderWatch, Refuse, WatchedLoader, wanted_arguments
from gputune_tui.trainer.script.model import CallCount, ModelChanges, ModelFinder
from gputune_tui.trainer.script.optimizers import OptimizerWatch
from gputune_tui.trainer.script.patches import Patches
from gputune_tui.trainer.script.window import Accumulation

OF_THE_MODEL = frozenset(("precision", "activation_checkpointing", "channels_last", "compile"))


class Injection:
    """The knobs of one order, put into this process.

    Args:
        settings: the values of all knobs.
        order: which of them are set from outside.
        device_kind: "cpu" or "cuda".
        refuse: ends the trial with the reason why a knob cannot be set.
        note: takes what was done, in words.
    """

    def __init__(
        self,
        settings: TrainSettings,
        order: ScriptOrder,
        device_kind: str,
        refuse: Refuse,
        note: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._injected = frozenset(order.injected)
        self._device_kind = device_kind
        self._refuse = refuse
        self._note = note
        wanted = wanted_arguments(settings, order.injected)
        self.loaders = LoaderWatch(wanted, order.site, refuse)
        self.loaders.on_changed = self._tell_loader
        self.optimizers = OptimizerWatch()
        self.finder = ModelFinder(self.optimizers.alive)
        self.optimizers.on_built.append(self.finder.search)
        self.accumulation: Accumulation | None = None
        self._changed: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._is_changing = False

    def install(self, patches: Patches, watch_batches: bool) -> None:
        """Change what is to be changed; where nothing is, nothing is replaced.

        Args:
            patches: takes what is replaced.
            watch_batches: the loaders' batches are to be counted in any case.
        """
        with self._refusing():
            self._prepare_process()
            self._install_accumulation(patches)
            self._install_model()
        if self.finder.is_searching or self.accumulation is not None or "optimizer" in self._injected:
            self.optimizers.install(patches)
        if "optimizer" in self._injected:
            self._install_optimizer()
        must_watch = self.accumulation is not None or "micro_batch_size" in self._injected
        if self.loaders.wanted or watch_batches or must_watch:
            self.loaders.must_watch = must_watch
            self.loaders.install(patches, watch_batches or must_watch)

    def watch_calls(self, calls: CallCount, patches: Patches) -> None:
        """Count what the models are called with, though nothing may be changed in them."""
        self.finder.watch_call = calls.watch
        if not self.finder.is_searching:
            self.finder.install()
            self.optimizers.install(patches)

    def _prepare_process(self) -> None:
        settings = self._settings
        if "precision" in self._injected:
            prepare_precision(settings.precision, self._device_kind)
            if (note := precision_note(settings.precision, self._device_kind)) is not None:
                self._note(note)
            if settings.precision in ("fp32", "tf32"):
                self._note(f"{settings.precision}: matmul precision set to {torch.get_float32_matmul_precision()}")
        if "flush_denormal" in self._injected and self._device_kind == "cpu":
            torch.set_flush_denormal(settings.flush_denormal)
            self._note(f"flush_denormal={settings.flush_denormal}: torch.set_flush_denormal()".lower())

    def _install_accumulation(self, patches: Patches) -> None:
        settings = self._settings
        parts = settings.accumulation_steps if ACCUMULATION in self._injected else 1
        scaler = grad_scaler(settings.precision, self._device_kind) if "precision" in self._injected else None
        if parts == 1 and scaler is None:
            return
        self.accumulation = Accumulation(parts, scaler, self._refuse)
        self.accumulation.install(patches)
        self.optimizers.on_built.append(self.accumulation.hold(patches))
        if parts > 1:
            self.loaders.on_epoch = self._begin_epoch
            self.loaders.on_exhausted = self._end_epoch
            self._note(
                f"accumulation_steps={parts}: losses weighted by their share of the samples, optimizer.step(), "
                f"zero_grad(), gradient clipping and scheduler steps once every {parts} iterations"
            )
        if scaler is not None:
            self._note(
                "fp16: losses scaled by a torch.amp.GradScaler, which unscales before clipping and may skip steps"
            )

    def _install_model(self) -> None:
        if not self._injected & OF_THE_MODEL:
            return
        changes = ModelChanges(self._settings, self._injected, self._device_kind, self._note)
        changes.install(self.finder)
        apply = changes.apply

        def applied(model: torch.nn.Module) -> None:
            with self._refusing():
                apply(model)

        self.finder.on_found = applied
        if self.accumulation is not None:
            window = self.accumulation.window
            changes.exchanges_gradients = lambda: window.is_last
        self.finder.install()

    def _install_optimizer(self) -> None:
        register_optimizer_step_pre_hook(self._change_optimizer)

    def _change_optimizer(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Before its first step, when its constructor is through; what is built to try an implementation is none."""
        if self._is_changing or optimizer in self._changed:
            return
        self._is_changing = True
        with self._refusing():
            apply_optimizer_implementation(optimizer, self._settings.optimizer)
        self._is_changing = False
        self._changed.add(optimizer)
        self._note(f"optimizer={self._settings.optimizer}: {type(optimizer).__name__}")

    def _begin_epoch(self, watched: WatchedLoader) -> None:
        if self.accumulation is not None and self.loaders.feeds_training(watched):
            sizes = watched.sizes()
            if sizes is None:
                self._refuse(f"the loader at {watched.place} does not tell where its epoch ends")
            self.accumulation.begin_epoch(sizes)

    def _end_epoch(self, watched: WatchedLoader) -> None:
        if self.accumulation is not None and self.loaders.feeds_training(watched):
            self.accumulation.window.end_epoch()

    def _tell_loader(self, watched: WatchedLoader) -> None:
        names = [name for name in self.loaders.wanted if name in {*self._injected, "batch_size"}]
        arguments = ", ".join(f"{name}={watched.arguments.get(name)}" for name in names)
        self._note(f"DataLoader at {watched.place}: {arguments}")

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """A setting that does not apply ends the trial, whatever the script makes of the exception."""
        try:
            yield
        except SettingsNotApplicable as fault:
            self._refuse(str(fault))
