"""The knobs that a trial measured, and which of them a target's file holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputune_tui.domain.environment import intra_op_threads
from gputune_tui.domain.knobs import KNOB_BY_NAME, KnobValue, assignments_text
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.template import told_knobs
from gputune_tui.export.report import ExportReport

LOADER_ARGUMENTS = {
    "micro_batch_size": "batch_size",
    "num_workers": "num_workers",
    "prefetch_factor": "prefetch_factor",
    "pin_memory": "pin_memory",
    "persistent_workers": "persistent_workers",
}
"""Knobs that are arguments of torch's DataLoader."""
MIXED_PRECISIONS = ("bf16", "fp16")
"""Those under autocast; the others are settings of torch itself."""
_OF_RANKS = {"strategy", "gradient_compression", "bucket_size_mib", "no_sync", "static_graph"}
"""Nothing that a single rank measures."""
_NO_SETTINGS = {"data_staging"}
"""From where a trial read its data."""
_PLAIN = TrainSettings()
"""What torch does where nothing is said."""


class Measured:
    """Takes note of the knobs that a target writes; of those that are left it says how they are set in code.

    Of a command that nobody has looked at, only the knobs that it was told were set by the trial.
    """

    def __init__(self, report: ExportReport) -> None:
        self.settings = report.settings
        self.device_kind = report.environment.device_kind
        workload = report.workload
        is_told_all = not workload.command or report.script is not None
        self._names = (set(KNOB_BY_NAME) if is_told_all else told_knobs(workload)) - _NO_SETTINGS
        if report.settings.world_size == 1:
            self._names -= _OF_RANKS
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def take(self, name: str) -> KnobValue:
        """The value of a measured knob, which the target writes.

        Raises:
            KeyError: the knob was not measured.
        """
        if name not in self._names:
            raise KeyError(name)
        self._taken.add(name)
        return self.value(name)

    def take_as(self, keys: Mapping[str, str]) -> dict[str, Any]:
        """The measured ones of these knobs under the target's key for each."""
        return {key: self.take(name) for name, key in keys.items() if name in self}

    @property
    def mixed_precision(self) -> str | None:
        """The type of autocast that was measured; None without one, and where the precision was not measured."""
        found = self.settings.precision
        return found if "precision" in self and found in MIXED_PRECISIONS else None

    def value(self, name: str) -> KnobValue:
        """The value of a knob, whether or not the target can write it."""
        found: KnobValue = getattr(self.settings, name)
        return found

    def not_written(self, target: str) -> tuple[str, ...]:
        """A sentence for each measured knob that the target does not write and torch does not do by itself."""
        left = [name for name in KNOB_BY_NAME if self._is_left(name)]
        loader = [name for name in left if name in LOADER_ARGUMENTS]
        said = [self._sentence(target, [name], how) for name in left if (how := self._in_code(name)) is not None]
        if loader:
            arguments = ", ".join(f"{LOADER_ARGUMENTS[name]}={self.value(name)!r}" for name in loader)
            said.insert(0, self._sentence(target, loader, f"DataLoader({arguments})"))
        return tuple(said)

    def _is_left(self, name: str) -> bool:
        if name not in self._names or name in self._taken:
            return False
        if name == "precision" and self.device_kind == "cuda":
            return True  # torch allows TF32 in convolutions by itself, and nothing was measured under that
        return name == "micro_batch_size" or self.value(name) != getattr(_PLAIN, name)

    def _sentence(self, target: str, names: list[str], how: str) -> str:
        values = assignments_text({name: self.value(name) for name in names}, ", ")
        return f"{target} has no key for {values}; in code: {how}"

    def _in_code(self, name: str) -> str | None:
        value = str(self.value(name))
        if name == "python":
            return f"run it by {value}, which the trial ran under"
        if name == "accumulation_steps":
            return f"backward() on {value} micro-batches, each loss weighted by its share, before each optimizer.step()"
        if name not in _IN_CODE:
            return None
        kind, _, number = value.partition(":")
        return _IN_CODE[name].get(kind, "").format(value=value, number=number, device=self.device_kind)


def set_from_outside(report: ExportReport) -> tuple[str, ...]:
    """A sentence for the knobs that a trial has set in a script which has no flag for them; none without any."""
    names = report.script.injected if report.script else ()
    if not names:
        return ()
    values = report.settings.as_dict()
    knobs = assignments_text({name: values[name] for name in names}, ", ")
    return (
        f"{knobs} {'was' if len(names) == 1 else 'were'} set in the script from outside, which this file cannot do; "
        "gputune-tui run CONFIG.yaml -- COMMAND does it, with the file of --to yaml",
    )


def cpu_threads(report: ExportReport) -> int | None:
    """Threads that torch had in a trial on a CPU; None on a GPU."""
    cpus = report.environment.effective_cpus
    return intra_op_threads(cpus) if report.environment.device_kind == "cpu" and cpus is not None else None


_EACH_BLOCK = "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
_IN_CODE: dict[str, dict[str, str]] = {
    "precision": {
        "fp32": "torch.backends.cudnn.allow_tf32 = False, since torch allows TF32 in convolutions",
        "tf32": 'torch.set_float32_matmul_precision("high") and torch.backends.cudnn.allow_tf32 = True',
        "bf16": 'torch.autocast("{device}", torch.bfloat16) around the forward pass and the loss',
        "fp16": 'torch.autocast("{device}", torch.float16) around the forward pass and the loss, with a '
        'torch.amp.GradScaler("{device}")',
    },
    "activation_checkpointing": {
        "full": f"{_EACH_BLOCK} for every block",
        "every": _EACH_BLOCK + " for one block in {number}",
        "segments": "torch.utils.checkpoint.checkpoint_sequential(blocks, {number}, x, use_reentrant=False)",
        "selective": f"{_EACH_BLOCK[:-1]}, context_fn=...) for every block, with a policy that keeps the results of "
        "matrix products, convolutions and attention",
    },
    "optimizer": {
        "loop": "the optimizer with foreach=False, fused=False",
        "foreach": "the optimizer with foreach=True, fused=False",
        "fused": "the optimizer with fused=True",
    },
    "channels_last": {"True": "model.to(memory_format=torch.channels_last), and the images alike"},
    "compile": dict.fromkeys(("default", "reduce-overhead", "max-autotune"), 'model.compile(mode="{value}")'),
    "flush_denormal": {"True": "torch.set_flush_denormal(True)"},
}
