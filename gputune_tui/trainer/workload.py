"""A user's workload behind one interface: load it, adapt what it returns, and name what it lacks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trainer.batch import samples_in
from gputune_tui.trainer.describe import describe_exception, place_of
from gputune_tui.trainer.importing import (
    WorkloadFault,
    WorkloadRefused,
    content_hash,
    import_workload,
    is_builtin,
)

__all__ = ["AdaptedWorkload", "LossResult", "WorkloadFault", "WorkloadRefused", "describe_exception", "load_workload"]

LOSS_FORMS = "a 0-d tensor, (loss, item_count), a dict with 'loss', or an object with .loss"
ITEM_KEYS = ("item_count", "items", "count")
REQUIRED = ("build_model", "loss")
DATA_SOURCES = ("build_dataset", "build_loader")


class LossResult(NamedTuple):
    """What a workload's `loss` gave."""

    loss: Tensor
    """0-d; the mean over `items` where these are known."""
    items: int | Tensor | None = None
    """Count of what the loss is the mean of (tokens, boxes); None where the workload does not say."""


class AdaptedWorkload:
    """The workload as the trainer uses it; every fault of the user's code stays theirs, with file and line."""

    def __init__(self, user: Any, name: str, class_name: str, sources_hash: str) -> None:
        self.user = user
        self.name = name
        self.class_name = class_name
        self.content_hash = sources_hash
        self._own_batch_size = self.optional("batch_size_of")

    @property
    def global_batch_size(self) -> int | None:
        """The workload's own default."""
        value = getattr(self.user, "global_batch_size", None)
        return value if isinstance(value, int) and value > 0 else None

    def build_model(self) -> nn.Module:
        """The user's model.

        Raises:
            WorkloadFault: it is not an nn.Module.
        """
        model = self.user.build_model()
        if not isinstance(model, nn.Module):
            raise self.fault("build_model", f"returned {type(model).__name__}, not an nn.Module")
        return model

    def build_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The user's optimizer, else AdamW with torch's defaults.

        Raises:
            WorkloadFault: it is no optimizer, or the model has nothing to train.
        """
        trainable = list(parameters)
        if not trainable:
            raise WorkloadFault(f"{self.name}: the model has no trainable parameter")
        build = getattr(self.user, "build_optimizer", None)
        if build is None:
            return torch.optim.AdamW(trainable)
        optimizer = build(trainable)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise self.fault("build_optimizer", f"returned {type(optimizer).__name__}, not a torch.optim.Optimizer")
        return optimizer

    def loss(self, model: nn.Module, batch: Any) -> LossResult:
        """Forward pass and loss of one batch.

        Raises:
            WorkloadFault: what it returned is none of the accepted forms.
        """
        return self._loss_in(self.user.loss(model, batch))

    def mean_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """As `loss`, the loss alone: quickest for the form that most workloads have.

        Raises:
            WorkloadFault: what it returned is none of the accepted forms.
        """
        value = self.user.loss(model, batch)
        if type(value) is Tensor and value.requires_grad and not value.dim():
            return value
        return self._loss_in(value).loss

    def _loss_in(self, value: Any) -> LossResult:
        loss, items = (value, None) if isinstance(value, Tensor) else _loss_and_items(value)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise self._no_loss(value, loss)
        # A reshape would be one more step of the backward pass.
        loss = loss.reshape(()) if loss.dim() else loss
        return LossResult(loss, items if _is_count(items) else None)

    def _no_loss(self, value: Any, loss: Any) -> WorkloadFault:
        if not isinstance(loss, Tensor):
            return self.fault("loss", f"returned {_words(value)}; it may return {LOSS_FORMS}")
        if loss.numel() != 1:
            return self.fault("loss", f"returned a loss of shape {tuple(loss.shape)}; return its mean, {LOSS_FORMS}")
        return self.fault("loss", "returned a loss that depends on no trainable parameter (requires_grad is false)")

    def batch_size_of(self, batch: Any) -> int:
        """Samples in a batch: the workload's own answer, else the first dimension of its first tensor.

        Raises:
            WorkloadFault: the batch holds neither a tensor nor a list.
        """
        if self._own_batch_size is not None:
            return int(self._own_batch_size(batch))
        # Tensor.__len__ takes a microsecond more than a look at the shape.
        size = batch.shape[0] if type(batch) is Tensor and batch.shape else samples_in(batch)
        if size is None:
            raise WorkloadFault(
                f"{self.name}: no batch size found in a {type(batch).__name__}; give the workload batch_size_of(batch)"
            )
        return size

    def fault(self, method: str, text: str) -> WorkloadFault:
        """What one of the user's methods did wrong, with the place where it begins."""
        code = getattr(getattr(self.user, method), "__code__", None)
        where = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code is not None else ""
        return WorkloadFault(f"{self.name}: {method}{where} {text}")

    def checkpoint_blocks(self, model: nn.Module) -> list[nn.Module] | None:
        """The blocks that the workload names; None where it leaves that to us."""
        own = getattr(self.user, "checkpoint_blocks", None)
        blocks = None if own is None else own(model)
        return None if blocks is None else list(blocks)

    def optional(self, name: str) -> Callable[..., Any] | None:
        """An optional member of the user's workload."""
        found = getattr(self.user, name, None)
        return found if callable(found) else None

    def close(self) -> None:
        """Let the workload release what it holds."""
        close = self.optional("close")
        if close is not None:
            close()


def load_workload(ref: WorkloadRef) -> AdaptedWorkload:
    """Import the workload and make it with its options.

    Raises:
        WorkloadRefused: there is no such workload, class or option, or it refuses an option's value.
        WorkloadFault: it cannot be imported or made, or lacks a method.
    """
    module, class_name = import_workload(ref.name)
    factory, found_name = _find_class(module, class_name, ref.name)
    user = module if factory is None else _make(factory, ref)
    if factory is None and ref.options:
        raise WorkloadRefused(f"{ref.name} is a module without a class, so it takes no -D options")
    missing = [name for name in REQUIRED if not callable(getattr(user, name, None))]
    if not any(callable(getattr(user, name, None)) for name in DATA_SOURCES):
        missing.append("build_dataset or build_loader")
    if missing:
        raise WorkloadFault(f"{ref.name}: {found_name} has no {', no '.join(missing)}; see the README, workload format")
    return AdaptedWorkload(user, ref.name, found_name, content_hash(module))


def _find_class(module: Any, class_name: str | None, name: str) -> tuple[type | None, str]:
    """The class to make, and its name; (None, "module") where the module itself is the workload."""
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    if class_name is not None:
        found = getattr(module, class_name, None)
        if not isinstance(found, type):
            there = f"it has {', '.join(c.__name__ for c in own)}" if own else "it has none"
            raise WorkloadRefused(f"{name}: there is no class {class_name!r} in it; {there}")
        return found, class_name
    default = getattr(module, "Workload", None)
    if isinstance(default, type) and default in own:
        return default, "Workload"
    fitting = [c for c in own if hasattr(c, "build_model")]
    most_derived = [c for c in fitting if not any(c is not other and issubclass(other, c) for other in fitting)]
    if len(most_derived) == 1:
        return most_derived[0], most_derived[0].__name__
    if len(most_derived) > 1:
        names = ", ".join(c.__name__ for c in most_derived)
        raise WorkloadRefused(f"{name} has several workload classes ({names}); say which: {name}:{names.split(',')[0]}")
    if callable(getattr(module, "build_model", None)):
        return None, "module"
    if isinstance(default, type):  # imported from elsewhere
        return default, "Workload"
    raise WorkloadFault(f"{name} has no class with build_model; see the README, workload format")


def _make(factory: type, ref: WorkloadRef) -> Any:
    try:
        inspect.signature(factory).bind(**ref.options)
    except TypeError as error:
        accepted = list(inspect.signature(factory).parameters)
        takes = f"it takes {', '.join(accepted)}" if accepted else "it takes none"
        raise WorkloadRefused(f"{ref.name}: the -D options do not fit: {error}; {takes}") from error
    except ValueError:
        pass  # a builtin without a signature: its constructor will tell
    try:
        return factory(**ref.options)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except (Exception, SystemExit) as error:  # whatever the user's constructor raises is a fault to name
        if isinstance(error, ValueError) and ref.options:
            raise WorkloadRefused(f"{ref.name}: {_option_words(error, ref.name)}") from error
        raise WorkloadFault(f"{ref.name}: {describe_exception(error)}") from error


def _option_words(error: ValueError, name: str) -> str:
    """Why an option's value was refused; the built-in workloads say it well enough to need no place in their files."""
    where = None if is_builtin(name) else place_of(error)
    return f"{error} ({where})" if where else str(error)


def _loss_and_items(value: Any) -> tuple[Any, Any]:
    """The two parts of whatever `loss` returned; the second is None unless it is given as a count."""
    if type(value) is tuple:  # first, since the attributes below cost most where they are not there
        return _first_two(value)
    if hasattr(value, "_asdict") and hasattr(value, "loss"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return value.get("loss"), next((value[key] for key in ITEM_KEYS if key in value), None)
    if hasattr(value, "loss"):
        # Lists and mappings have methods named count and items.
        given = (getattr(value, key, None) for key in ITEM_KEYS)
        return value.loss, next((items for items in given if _is_count(items)), None)
    return _first_two(value) if isinstance(value, tuple | list) else (value, None)


def _first_two(value: Sequence[Any]) -> tuple[Any, Any]:
    return (value[0] if value else None), (value[1] if len(value) == 2 else None)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        keys = ", ".join(map(repr, list(value)[:6])) or "no keys"
        return f"a {type(value).__name__} with {keys}" + (" whose 'loss' is no tensor" if "loss" in value else "")
    if isinstance(value, tuple | list) and value:
        return f"a {type(value).__name__} that begins with {type(value[0]).__name__}"
    return type(value).__name__


def _is_count(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() == 0 and not value.is_floating_point() and value.dtype != torch.bool
    return isinstance(value, int) and not isinstance(value, bool)
