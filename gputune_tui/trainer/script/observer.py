"""What a script does by itself in its first optimizer steps: how it trains, and what keeps a knob from being set."""

from __future__ import annotations

import platform
import statistics
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer
from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from gputune_tui.domain.script import ACCUMULATION, ScriptFacts
from gputune_tui.trainer.blocks import find_blocks
from gputune_tui.trainer.describe import is_users_file
from gputune_tui.trainer.faults import SettingsNotApplicable
from gputune_tui.trainer.script.flags import FlagWatch
from gputune_tui.trainer.script.loaders import LoaderWatch, WatchedLoader
from gputune_tui.trainer.script.losses import why_no_mean
from gputune_tui.trainer.script.model import CallCount, ModelFinder, unwrapped
from gputune_tui.trainer.script.patches import Function, Patches

FRAMEWORKS = (
    ("transformers/trainer.py", "transformers.Trainer"),
    ("lightning/pytorch/", "Lightning"),
    ("pytorch_lightning/", "Lightning"),
    ("accelerate/optimizer.py", "accelerate"),
)
"""What of its path tells that a framework runs the loop."""
LOOPS = {"transformers.Trainer": "gradient_accumulation_steps", "Lightning": "accumulate_grad_batches"}
"""Frameworks that count batches and steps themselves, and how each is told to accumulate."""
TEMPLATE = "put {{{}}} into the command"


class ScriptObserver:
    """Watches a script without changing anything. Every count is of this process."""

    def __init__(self, loaders: LoaderWatch, finder: ModelFinder, declared: int | None = None) -> None:
        self._loaders = loaders
        self._finder = finder
        self._declared = declared
        """Samples of a step over all ranks, where the user says so."""
        self._rates: set[tuple[float, ...]] = set()
        self._has_schedule = False
        self._no_mean = ""
        self._flags = FlagWatch()
        self._backwards = 0
        self._calls = CallCount()
        self._steps: list[_Step] = []
        self._stepped: list[Optimizer] = []
        self._autocast: torch.dtype | None = None
        self._has_scaler = False
        self._recomputes = False
        self._takes_gradients = False
        self._framework = ""
        self._blocks = ""
        self._no_blocks = ""

    def install(self, patches: Patches) -> None:
        """Begin to watch."""
        patches.wrap(torch.Tensor, "backward", self._counting_backward)
        patches.wrap(torch.amp.autocast_mode.autocast, "__enter__", self._noting_autocast)
        patches.wrap(torch.amp.GradScaler, "step", self._noting("_has_scaler", lambda args: args[0].is_enabled()))
        patches.wrap(torch.utils.checkpoint, "checkpoint", self._noting("_recomputes"))
        patches.wrap(LRScheduler, "__init__", self._noting("_has_schedule"))
        patches.wrap(torch.autograd, "grad", self._noting("_takes_gradients", lambda _args: _called_by_user()))
        self._flags.install(patches)
        self._finder.on_found = self._look_at
        self._finder.watch_call = self._calls.watch

    def step_done(self, optimizer: Optimizer) -> None:
        """The optimizer has made a step."""
        if not any(optimizer is known for known in self._stepped):
            self._stepped.append(optimizer)
        if optimizer is not self._stepped[0]:
            return
        self._framework = self._framework or framework_of_call()
        fed = [loader for loader in self._loaders.loaders if loader.batches_of_step]
        batches = max((loader.batches_of_step for loader in fed), default=0)
        self._steps.append(_Step(self._backwards, batches, self._calls.samples, self._calls.calls))
        self._backwards = self._calls.samples = self._calls.calls = 0
        self._rates.add(tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group))
        self._loaders.step_done()

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return len(self._steps)

    def facts(self, world_size: int) -> ScriptFacts | None:
        """What is known by now; None where its samples cannot be counted."""
        loader = self._loaders.training_loader()
        # The first step may follow a loader's look ahead, or what a framework tries out before it trains.
        counted = self._steps[1:] or self._steps
        backwards = int(statistics.median_low(step.backwards for step in counted)) or 1
        batches = int(statistics.median_low(step.batches for step in counted))
        samples, counted_by = self._samples_of_batch(loader), "loader"
        # Several optimizers make several backward passes a step, on one batch or on several.
        parts = 1 if len(self._stepped) > 1 else backwards if batches in (0, backwards) else max(1, batches)
        if samples is None or batches == 0:
            # A model that is called several times for one loss sees the same samples again, or others.
            of_step = max((step.model_samples for step in counted if step.calls == parts), default=0)
            samples, counted_by = of_step // parts, "model"
        if not samples and self._declared is not None:
            samples = max(1, self._declared // (parts * world_size))
        if not samples:
            return None
        models = self._finder.found
        inner = unwrapped(models[0]) if models else None
        return ScriptFacts(
            micro_batch_size=samples,
            accumulation_steps=parts,
            world_size=world_size,
            counted_by=counted_by,
            loader=loader.facts() if loader is not None and counted_by == "loader" else None,
            precision=self._precision(),
            compile="default" if any(_is_compiled(model) for model in models) else "none",
            channels_last=inner is not None and _is_channels_last(inner),
            model=type(inner).__name__ if inner is not None else "",
            parameters=sum(p.numel() for group in self._stepped[0].param_groups for p in group["params"]),
            blocks=self._blocks,
            optimizer=type(self._stepped[0]).__name__,
            framework=self._framework,
            refused=self._refused(loader, parts, batches, counted_by),
            flags=dict(self._flags.found),
            torch=str(torch.__version__),
            python=platform.python_version(),
            remarks=tuple(self._remarks(loader, world_size)),
        )

    def _samples_of_batch(self, loader: WatchedLoader | None) -> int | None:
        if loader is None or not loader.batches:
            return None
        built = loader.loader()
        size = getattr(built, "batch_size", None) or getattr(getattr(built, "batch_sampler", None), "batch_size", None)
        return int(size) if isinstance(size, int) and size > 0 else loader.samples // loader.batches

    def _precision(self) -> str:
        names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
        if self._autocast is not None:
            return names.get(self._autocast, "fp32")
        own = {p.dtype for group in self._stepped[0].param_groups for p in group["params"]}
        if len(own) == 1 and (name := names.get(own.pop())) is not None:
            return name
        is_tf32 = torch.cuda.is_initialized() and torch.get_float32_matmul_precision() != "highest"
        return "tf32" if is_tf32 else "fp32"

    def _refused(self, loader: WatchedLoader | None, parts: int, batches: int, counted_by: str) -> dict[str, str]:
        refused: dict[str, str] = {}
        if self._precision() in ("bf16", "fp16") or self._has_scaler:
            kind = "autocast" if self._autocast is not None else "half-precision parameters"
            with_scaler = " and a GradScaler" if self._has_scaler else ""
            refused["precision"] = f"the script uses {kind}{with_scaler} by itself; {TEMPLATE.format('precision')}"
        why = self._why_not_accumulate(loader, parts, batches, counted_by)
        if why:
            refused[ACCUMULATION] = why
        if self._recomputes:
            refused["activation_checkpointing"] = "the script recomputes activations by itself (torch.utils.checkpoint)"
        elif self._no_blocks:
            refused["activation_checkpointing"] = self._no_blocks
        if not self._finder.found:
            for name in ("precision", "activation_checkpointing", "channels_last", "compile"):
                refused.setdefault(name, "no call of a module with trained parameters was seen")
        elif any(_is_compiled(model) for model in self._finder.found):
            refused["compile"] = "the script compiles its model by itself"
        if loader is None or counted_by == "model":
            for name in ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers"):
                refused[name] = "no DataLoader feeds the training"
        elif isinstance(loader.arguments.get("dataset"), IterableDataset) and loader.facts().num_workers < 2:
            refused["num_workers"] = "each worker of an iterable dataset may give the same samples again"
        return refused

    def _why_not_accumulate(self, loader: WatchedLoader | None, parts: int, batches: int, counted_by: str) -> str:
        by_template = TEMPLATE.format("micro_batch_size") + " and {accumulation_steps}"
        if self._framework in LOOPS:
            return f"{self._framework} accumulates by itself ({LOOPS[self._framework]}); {by_template}"
        if len(self._stepped) > 1:
            return f"{len(self._stepped)} optimizers take turns, and which losses belong to which cannot be told"
        if parts > 1:
            return f"the script accumulates by itself ({parts} backward passes a step); {by_template}"
        if self._has_scaler:
            return f"the script has a GradScaler, which takes one backward pass a step; {by_template}"
        if self._takes_gradients:
            return "the script takes gradients by torch.autograd.grad, which a sum over smaller batches would change"
        if self._no_mean:
            return f"the loss is no plain mean over the batch ({self._no_mean}); {by_template}"
        if loader is None or counted_by == "model":
            return f"no DataLoader feeds the training, so the size of its batches is set in the script; {by_template}"
        built = loader.loader()
        is_stream = isinstance(loader.arguments.get("dataset"), IterableDataset)
        if built is None or is_stream or type(built.batch_sampler) is not BatchSampler:
            return (
                "the loader's batches come from the script's own batch_sampler or an iterable dataset, which does not "
                f"tell where its epoch ends; {by_template}"
            )
        if len(self._rates) > 1 and not self._has_schedule:
            return f"the script sets its learning rate by hand, by a count of iterations perhaps; {by_template}"
        return "" if batches == 1 else f"a step takes {batches} batches; {by_template}"

    def _remarks(self, loader: WatchedLoader | None, world_size: int) -> list[str]:
        remarks = []
        sampler = getattr(loader.loader(), "sampler", None) if loader is not None else None
        is_told = loader is not None and loader.epochs_set > 0
        if isinstance(sampler, DistributedSampler) and sampler.shuffle and not is_told:
            remarks.append(
                "sampler.set_epoch(epoch) was not called before the epoch, so each would see the data in the same order"
            )
        if (
            world_size > 1
            and loader is not None
            and not isinstance(sampler, DistributedSampler)
            and not self._framework
        ):
            remarks.append(f"each of {world_size} ranks reads all of the data: the loader has no DistributedSampler")
        return remarks

    def _look_at(self, model: nn.Module) -> None:
        try:
            blocks = find_blocks(unwrapped(model))
        except SettingsNotApplicable:
            self._no_blocks = "no repeated blocks were found in its model"
            return
        kinds = ", ".join(dict.fromkeys(type(block).__name__ for block in blocks))
        self._blocks, self._no_blocks = self._blocks or f"{len(blocks)} x {kinds}", ""

    def _counting_backward(self, original: Function) -> Function:
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._backwards += 1
            self._no_mean = self._no_mean or why_no_mean(args[0])
            return original(*args, **kwargs)

        return backward

    def _noting_autocast(self, original: Function) -> Function:
        def enter(context: Any) -> Any:
            if context._enabled and torch.is_grad_enabled():
                self._autocast = context.fast_dtype
            return original(context)

        return enter

    def _noting(self, name: str, applies: Callable[[tuple[Any, ...]], bool] = lambda _args: True) -> Any:
        """A wrapper that notes a call in an attribute."""

        def make(original: Function) -> Function:
            def call(*args: Any, **kwargs: Any) -> Any:
                if args and applies(args):
                    setattr(self, name, True)
                return original(*args, **kwargs)

            return call

        return make


@dataclass(frozen=True)
class _Step:
    """What came before one optimizer step."""

    backwards: int
    batches: int
    model_samples: int
    calls: int


def framework_of_call() -> str:
    """The framework whose loop has called; empty where the script's own has."""
    frame: types.FrameType | None = sys._getframe(1)
    found = ""
    while frame is not None:
        path = Path(frame.f_code.co_filename).as_posix()
        known = next((name for part, name in FRAMEWORKS if part in path), "")
        # accelerate is part of the others: the outermost counts.
        found = known or found
        frame = frame.f_back
    return found


def _called_by_user() -> bool:
    return is_users_file(sys._getframe(3).f_code.co_filename)


def _is_compiled(model: nn.Module) -> bool:
    return hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None


def _is_channels_last(model: nn.Module) -> bool:
    images = [p for p in model.parameters() if p.dim() == 4 and min(p.shape[1:]) > 1]
    return bool(images) and all(p.is_contiguous(memory_format=torch.channels_last) for p in images)
