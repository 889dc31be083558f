"""The model that a script trains: found when it is first called, changed as the settings say, and called under them."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.trainer.checkpointing import apply_checkpointing
from gputune_tui.trainer.precision import AUTOCAST_TYPES, check_parameters
from gputune_tui.trainer.script.patches import Function, Patches
from gputune_tui.trainer.train_step import batchnorm_note, to_channels_last

MOST_SEARCHED_STEPS = 100
"""What is not called under gradients by then is not trained as a module."""
HALF_TYPES = (torch.bfloat16, torch.float16)


class ModelFinder:
    """Finds the modules that a script calls itself and that hold what an optimizer trains.

    Every call of a module is looked at until each optimizer has met a module that it trains, and again once another
    optimizer is built; otherwise only the classes of those found keep a wrapper. No instance is touched: a model stays
    what pickle and deepcopy expect.
    """

    def __init__(self, optimizers: Callable[[], list[Optimizer]]) -> None:
        self._optimizers = optimizers
        self._patches = Patches()
        self._calls = Patches()
        self._found: dict[int, weakref.ref[nn.Module]] = {}
        self._searched_steps = 0
        self._is_installed = False
        self.on_found: Callable[[nn.Module], None] = lambda _model: None
        self.around: Callable[[nn.Module], AbstractContextManager[Any]] = lambda _model: contextlib.nullcontext()
        self.watch_call: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None
        self.on_call: Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]] | None = None
        self.on_result: Callable[[Any], Any] | None = None
        self.is_searching = False
        """Whether every call of a module is looked at."""

    @property
    def found(self) -> list[nn.Module]:
        """Those that are alive, in the order in which they were called first."""
        return [model for known in self._found.values() if (model := known()) is not None]

    def install(self) -> None:
        """Begin to look."""
        self._is_installed = True
        self.search()

    def search(self, _optimizer: Optimizer | None = None) -> None:
        """Look at every call from now on: an optimizer was built."""
        if self._is_installed:
            self.is_searching, self._searched_steps = True, 0
            self._look()

    def step_done(self, _optimizer: Optimizer) -> bool:
        """After a step; returns False, since more optimizers may come."""
        if self.is_searching:
            self._searched_steps += 1
            if self._searched_steps >= MOST_SEARCHED_STEPS or self._has_all():
                self.is_searching = False
                self._calls.undo()
        return False

    def _has_all(self) -> bool:
        met = {id(parameter) for model in self.found for parameter in model.parameters()}
        return all(
            any(id(parameter) in met for group in optimizer.param_groups for parameter in group["params"])
            for optimizer in self._optimizers()
        )

    def _is_found(self, module: nn.Module) -> bool:
        known = self._found.get(id(module))
        return known is not None and known() is module

    def _look(self) -> None:
        if self.is_searching and not self._calls:
            self._calls.wrap(nn.Module, "__call__", self._looking)

    @contextlib.contextmanager
    def _not_looking(self) -> Iterator[None]:
        """What a module calls inside is none of the script's own calls."""
        self._calls.undo()
        try:
            yield
        finally:
            self._look()

    def _looking(self, original: Function) -> Function:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with self._not_looking():
                if not self._is_trained(module):
                    return original(module, *args, **kwargs)
                self._adopt(module)
                return type(module).__call__(module, *args, **kwargs)

        return call

    def _is_trained(self, module: nn.Module) -> bool:
        if not (module.training and torch.is_grad_enabled()) or self._is_found(module):
            return False
        if torch._C._current_graph_task_id() != -1:
            return False  # a backward pass that computes activations again
        trained = {id(p) for o in self._optimizers() for group in o.param_groups for p in group["params"]}
        return any(id(parameter) in trained for parameter in module.parameters())

    def _adopt(self, module: nn.Module) -> None:
        self._found[id(module)] = weakref.ref(module)
        self.on_found(module)
        cls = type(module)
        if not getattr(cls.__call__, "_gputune_wraps", False):
            self._patches.wrap(cls, "__call__", self._calling)
            cls.__call__._gputune_wraps = True  # type: ignore[attr-defined]  # of our own function

    def _calling(self, original: Function) -> Function:
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not self._is_found(module):
                return original(module, *args, **kwargs)
            if self.watch_call is not None:
                self.watch_call(args, kwargs)
            if self.on_call is not None:
                args, kwargs = self.on_call(args, kwargs)
            with self._not_looking() if self.is_searching else contextlib.nullcontext(), self.around(module):
                result = original(module, *args, **kwargs)
            return result if self.on_result is None else self.on_result(result)

        return call


class CallCount:
    """Samples by the first dimension of what a model is called with, of calls that train."""

    def __init__(self) -> None:
        self.samples = 0
        self.calls = 0

    def watch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count one call."""
        if torch.is_grad_enabled():
            first = next((v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.dim()), None)
            self.samples += 0 if first is None else int(first.shape[0])
            self.calls += 1


class ModelChanges:
    """Precision, memory format, checkpointing and compilation of the models found.

    Args:
        settings: their values.
        injected: the knobs that are set from outside.
        device_kind: "cpu" or "cuda".
        note: takes what was done, in words.
    """

    def __init__(
        self, settings: TrainSettings, injected: frozenset[str], device_kind: str, note: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._injected = injected
        self._device_kind = device_kind
        self._note = note
        self._type = AUTOCAST_TYPES.get(settings.precision) if "precision" in injected else None
        self._channels_last = "channels_last" in injected and settings.channels_last
        self.exchanges_gradients: Callable[[], bool] | None = None
        """Whether ranks exchange gradients in this pass; None leaves it to the script."""

    def install(self, finder: ModelFinder) -> None:
        """Apply to what `finder` finds."""
        finder.on_found = self.apply
        finder.around = self.around
        if self._channels_last:
            finder.on_call = self._to_channels_last
        if self._type is not None:
            finder.on_result = to_single_precision

    def apply(self, model: nn.Module) -> None:
        """Change a model before its first pass.

        Raises:
            SettingsNotApplicable: a setting does not apply to it.
        """
        settings, injected = self._settings, self._injected
        inner = unwrapped(model)
        if self._type is not None:
            check_parameters(settings.precision, inner.parameters())
            self._note(
                f"{settings.precision}: {type(model).__name__} is called under autocast, its results are float32"
            )
        if self._channels_last:
            to_channels_last(inner)
            self._note(f"channels_last: weights of {type(inner).__name__} and the images it is called with")
        if "activation_checkpointing" in injected:
            for remark in apply_checkpointing(inner, settings.activation_checkpointing, None):
                self._note(f"activation_checkpointing={settings.activation_checkpointing}: {remark}")
        if "compile" in injected and settings.compile != "none":
            model.compile(mode=None if settings.compile == "default" else settings.compile)
            self._note(f"compile={settings.compile}: {type(model).__name__}.compile()")
        if (note := batchnorm_note(inner, settings)) is not None and "accumulation_steps" in injected:
            self._note(note)

    @contextlib.contextmanager
    def around(self, model: nn.Module) -> Iterator[None]:
        """The contexts of one call of a model."""
        if self.exchanges_gradients is not None and isinstance(model, DistributedDataParallel):
            model.require_backward_grad_sync = self.exchanges_gradients()
        if self._type is None:
            yield
        else:
            with torch.autocast(self._device_kind, dtype=self._type):
                yield

    def _to_channels_last(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        change = functools.partial(map_tensors, _images_channels_last)
        return tuple(map(change, args)), {name: change(value) for name, value in kwargs.items()}


def unwrapped(model: nn.Module) -> nn.Module:
    """The script's own module inside DataParallel, DistributedDataParallel and what torch.compile returns."""
    while True:
        inner = getattr(model, "_orig_mod", None) or (getattr(model, "module", None) if is_wrapper(model) else None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_wrapper(model: nn.Module) -> bool:
    """Whether it only passes on to `module`."""
    return isinstance(model, DistributedDataParallel | nn.DataParallel)


def to_single_precision(result: Any) -> Any:
    """Results of a model as float32: a loss outside of autocast must not be computed in half precision."""
    return map_tensors(lambda tensor: tensor.float() if tensor.dtype in HALF_TYPES else tensor, result)


def _images_channels_last(tensor: Tensor) -> Tensor:
    if tensor.dim() == 4 and tensor.is_floating_point():
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The same containers with their tensors changed; of objects with named members (model outputs) those members."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, member) for member in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(change, member) for member in value)
    if type(value) is dict:
        return {name: map_tensors(change, member) for name, member in value.items()}
    if isinstance(value, dict):
        for name, member in value.items():
            if (new := map_tensors(change, member)) is not member:
                value[name] = new
    return value
