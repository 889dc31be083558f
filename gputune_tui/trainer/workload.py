"""A user's workload behind one interface: load it, adapt what it returns, and name what it lacks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trainer.describe import describe_exception
from gputune_tui.trainer.importing import WorkloadFault, WorkloadRefused, content_hash, import_workload

__all__ = ["AdaptedWorkload", "LossResult", "WorkloadFault", "WorkloadRefused", "describe_exception", "load_workload"]

LOSS_FORMS = "a 0-d tensor, (loss, item_count), a dict with 'loss', or an object with .loss"
REQUIRED = ("build_model", "loss")
DATA_SOURCES = ("build_dataset", "build_loader")


@dataclass(frozen=True)
class LossResult:
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
            raise WorkloadFault(f"{self.name}: build_model returned {type(model).__name__}, not an nn.Module")
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
            raise WorkloadFault(f"{self.name}: build_optimizer returned {type(optimizer).__name__}, not an Optimizer")
        return optimizer

    def loss(self, model: nn.Module, batch: Any) -> LossResult:
        """Forward pass and loss of one batch.

        Raises:
            WorkloadFault: what it returned is none of the accepted forms.
        """
        return self._read_loss(self.user.loss(model, batch))

    def _read_loss(self, value: Any) -> LossResult:
        items: Any = None
        if isinstance(value, Mapping):
            loss = value.get("loss")
            items = next((value[key] for key in ("count", "items", "item_count") if key in value), None)
        elif isinstance(value, tuple | list) and not hasattr(value, "loss"):
            loss = value[0] if value else None
            items = value[1] if len(value) == 2 and _is_count(value[1]) else None
        else:
            loss = value if isinstance(value, Tensor) else getattr(value, "loss", None)
        if not isinstance(loss, Tensor):
            raise WorkloadFault(f"{self.name}: loss returned {type(value).__name__}; it may return {LOSS_FORMS}")
        if loss.dim() != 0:
            if loss.numel() != 1:
                shape = tuple(loss.shape)
                raise WorkloadFault(f"{self.name}: loss has shape {shape}; return its mean, {LOSS_FORMS}")
            loss = loss.reshape(())
        if not loss.requires_grad:
            raise WorkloadFault(f"{self.name}: the loss depends on no parameter (requires_grad is false)")
        return LossResult(loss, items if _is_count(items) else None)

    def batch_size_of(self, batch: Any) -> int:
        """Samples in a batch: the workload's own answer, else the first dimension of its first tensor.

        Raises:
            WorkloadFault: the batch holds neither a tensor nor a list.
        """
        own = getattr(self.user, "batch_size_of", None)
        if own is not None:
            return int(own(batch))
        size = _first_size(batch)
        if size is None:
            raise WorkloadFault(
                f"{self.name}: no batch size found in a {type(batch).__name__}; give the workload batch_size_of(batch)"
            )
        return size

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
        missing.append("build_dataset")
    if missing:
        raise WorkloadFault(f"{ref.name}: {found_name} has no {', no '.join(missing)}; see the README, workload format")
    return AdaptedWorkload(user, ref.name, found_name, content_hash(module))


def _find_class(module: Any, class_name: str | None, name: str) -> tuple[type | None, str]:
    if class_name is not None:
        found = getattr(module, class_name, None)
        if not isinstance(found, type):
            raise WorkloadRefused(f"{name}: there is no class {class_name!r} in it")
        return found, class_name
    default = getattr(module, "Workload", None)
    if isinstance(default, type):
        return default, "Workload"
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    fitting = [c for c in own if hasattr(c, "build_model")]
    if len(fitting) == 1:
        return fitting[0], fitting[0].__name__
    if len(fitting) > 1:
        names = ", ".join(c.__name__ for c in fitting)
        raise WorkloadFault(f"{name} has several workload classes ({names}); say which: {name}:{fitting[0].__name__}")
    if callable(getattr(module, "build_model", None)):
        return None, "module"
    raise WorkloadFault(f"{name} has no class with build_model; see the README, workload format")


def _make(factory: type, ref: WorkloadRef) -> Any:
    try:
        inspect.signature(factory).bind(**ref.options)
    except TypeError as error:
        accepted = [p.name for p in inspect.signature(factory).parameters.values() if p.name != "self"]
        takes = f"it takes {', '.join(accepted)}" if accepted else "it takes none"
        raise WorkloadRefused(f"{ref.name}: an option does not fit: {error}; {takes}") from error
    except ValueError:
        pass  # a builtin without a signature: its constructor will tell
    try:
        return factory(**ref.options)
    except ValueError as error:
        raise WorkloadRefused(f"{ref.name}: {error}") from error
    except (Exception, SystemExit) as error:  # whatever the user's constructor raises is a fault to name
        raise WorkloadFault(f"{ref.name}: {describe_exception(error)}") from error


def _is_count(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() == 0 and not value.is_floating_point() and value.dtype != torch.bool
    return isinstance(value, int) and not isinstance(value, bool)


def _first_size(batch: Any, nested: bool = False) -> int | None:
    """First dimension of the first tensor; inside a batch, a list of images or targets counts its members."""
    if isinstance(batch, Tensor):
        return int(batch.shape[0]) if batch.dim() else None
    if isinstance(batch, Mapping):
        return _first_known(list(batch.values()))
    if is_dataclass(batch) and not isinstance(batch, type):
        return _first_known([getattr(batch, field.name) for field in fields(batch)])
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        if nested and _is_list_of_samples(batch):
            return len(batch)
        return _first_known(list(batch))
    return None


def _is_list_of_samples(batch: Sequence[Any]) -> bool:
    """A plain list of images (3-d tensors) or of targets (dicts), as detection models take them; [x, y] is no such."""
    alike = len({type(item) for item in batch}) == 1
    images = all(isinstance(item, Tensor) and item.dim() == 3 for item in batch)
    return alike and (images or all(isinstance(item, Mapping) for item in batch))


def _first_known(values: list[Any]) -> int | None:
    return next((size for value in values if (size := _first_size(value, nested=True)) is not None), None)
