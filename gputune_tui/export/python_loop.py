"""The training as a script of plain torch with exactly the chosen settings, for a workload class."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator

from gputune_tui.domain.builtin import PACKAGE, builtin_path
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import names_file, split_name
from gputune_tui.errors import UsageError
from gputune_tui.export import loop_text
from gputune_tui.export.evidence import comments
from gputune_tui.export.measured import MIXED_PRECISIONS, cpu_threads
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered, head_lines

BLOCKS_SOURCE = PACKAGE / "trainer" / "blocks.py"
"""How a trial finds repeated blocks; the script has the same functions, so that it recomputes the same blocks."""


def render(report: ExportReport) -> Rendered:
    """A script that imports the workload's class and torch, and nothing of ours.

    Raises:
        UsageError: the workload is a command, which is a training script already.
    """
    if report.workload.command:
        raise UsageError(
            "a command is a training script already; --to torchrun, env or yaml take its settings home, python does not"
        )
    purpose = "plain torch with the measured settings: python FILE [STEPS]"
    text = comments(head_lines(report, purpose, ())) + "".join(_pieces(report))
    return Rendered(text)


def _pieces(report: ExportReport) -> Iterator[str]:
    settings = report.settings
    target, class_name = split_name(report.workload.name)
    values = {
        "target": _target(target),
        "class_name": class_name,
        "options": dict(report.workload.options),
        "device": report.environment.device_kind,
        "micro_batch_size": settings.micro_batch_size,
        "accumulation_steps": settings.accumulation_steps,
    }
    accumulates = settings.accumulation_steps > 1
    yield _imports(settings)
    yield loop_text.NAMES.format_map({name: _literal(value) for name, value in values.items()})
    yield _workload(settings)
    if settings.activation_checkpointing != "none":
        yield from _checkpointing(settings)
    yield loop_text.LOADER.format(arguments=_loader_arguments(settings))
    if accumulates:
        yield loop_text.WINDOWS
    yield loop_text.MAIN_HEAD.format(prepare=_preparation(report), model=_model(settings))
    steps = loop_text.ACCUMULATED_STEPS if accumulates else loop_text.PLAIN_STEPS
    yield steps.format(**(_SCALED if settings.precision == "fp16" else _UNSCALED))
    yield loop_text.FOOT


_UNSCALED = {"backward": "loss.backward()", "update": "        optimizer.step()"}
_SCALED = {
    "backward": "scaler.scale(loss).backward()",
    "update": "        scaler.step(optimizer)\n        scaler.update()",
}


def _literal(value: object) -> str:
    """A value as Python source, text in double quotes; JSON's escapes of text are Python's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _imports(settings: TrainSettings) -> str:
    kind = _kind(settings)
    modules = {"dataclasses", "importlib", "importlib.util", "inspect", "itertools", "random", "re", "sys", "types"}
    if kind != "none" or settings.precision not in MIXED_PRECISIONS:
        modules.add("contextlib")
    lines = [f"import {module}" for module in sorted(modules | ({"functools"} if kind != "none" else set()))]
    checkpoint = ""
    if kind != "none":
        lines.append("from collections import Counter, defaultdict")
        names = ["checkpoint"]
        if kind == "selective":
            names = ["CheckpointPolicy", "checkpoint", "create_selective_checkpoint_contexts"]
        checkpoint = "from torch.nn.modules.batchnorm import _NormBase\n"
        checkpoint += f"from torch.utils.checkpoint import {', '.join(names)}\n"
    return loop_text.IMPORTS.format(
        modules="\n".join(lines),
        abstract="Mapping" if kind == "none" else "Callable, Iterable, Mapping, Sequence",
        nn="" if kind == "none" else ", nn",
        checkpoint=checkpoint,
    )


def _kind(settings: TrainSettings) -> str:
    return settings.activation_checkpointing.partition(":")[0]


def _target(target: str) -> str:
    """The file or the module; of a built-in workload its file."""
    path = builtin_path(target)
    if path is not None:
        return str(path)
    return os.path.abspath(target) if names_file(target) else target


def _workload(settings: TrainSettings) -> str:
    move = loop_text.MOVE_CHANNELS_LAST if settings.channels_last else loop_text.MOVE
    return loop_text.WORKLOAD.replace("{move}", move.format(non_blocking=settings.pin_memory))


def _checkpointing(settings: TrainSettings) -> Iterator[str]:
    kind, _, number = settings.activation_checkpointing.partition(":")
    yield loop_text.BLOCKS
    yield _functions_of_blocks()
    yield loop_text.RECOMPUTED.format(
        **(loop_text.SELECTIVE_CONTEXTS if kind == "selective" else loop_text.PLAIN_CONTEXTS)
    )
    if kind == "selective":
        yield loop_text.SELECTIVE
    if kind == "segments":
        yield loop_text.SEGMENTS.format(number=number)
    else:
        which = f"one block in {number}" if kind == "every" else "every block"
        yield loop_text.BLOCK_BY_BLOCK.format(what=f"Compute {which} again in the backward pass.", number=number or 1)


def _functions_of_blocks() -> str:
    """The source of the trial's own functions, without its imports."""
    source = BLOCKS_SOURCE.read_text(encoding="utf-8")
    tree = ast.parse(source)
    first = next(node for node in tree.body[1:] if not isinstance(node, ast.Import | ast.ImportFrom))
    body = "\n".join(source.splitlines()[first.lineno - 1 :])
    return f"\n\n{body}\n"


def _loader_arguments(settings: TrainSettings) -> str:
    arguments = {
        "batch_size": "MICRO_BATCH_SIZE",
        "num_workers": settings.num_workers,
        "pin_memory": settings.pin_memory,
    }
    if settings.num_workers:
        arguments |= {
            "prefetch_factor": settings.prefetch_factor or 2,
            "persistent_workers": settings.persistent_workers,
            "multiprocessing_context": '"fork"',
        }
    return "\n" + "".join(f'        "{name}": {value},\n' for name, value in arguments.items()) + "    "


def _preparation(report: ExportReport) -> str:
    settings, device = report.settings, report.environment.device_kind
    tf32 = settings.precision == "tf32"
    lines = ["random.seed(SEED)", "torch.manual_seed(SEED)"]
    if (threads := cpu_threads(report)) is not None:
        lines.append(f"torch.set_num_threads({threads})")
    lines.append(f'torch.set_float32_matmul_precision("{"high" if tf32 else "highest"}")')
    if device == "cuda":
        lines.append(f"torch.backends.cudnn.allow_tf32 = {tf32}")
    if settings.flush_denormal:
        lines.append("torch.set_flush_denormal(True)")
    kind = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}.get(settings.precision)
    lines.append(f"precision = {f'torch.autocast(DEVICE, {kind})' if kind else 'contextlib.nullcontext()'}")
    if settings.precision == "fp16":
        lines.append("scaler = torch.amp.GradScaler(DEVICE)")
    return "\n".join(f"    {line}" for line in lines)


_IMPLEMENTATIONS = {"loop": (False, False), "foreach": (True, False), "fused": (False, True)}
"""foreach and fused."""


def _model(settings: TrainSettings) -> str:
    lines = []
    if settings.channels_last:
        lines += [
            "for tensor in (*model.parameters(), *model.buffers()):",
            "    if tensor.dim() == 4 and tensor.is_floating_point():",
            "        tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)",
        ]
    if settings.activation_checkpointing != "none":
        lines.append("recompute(blocks_of(workload, model))")
    lines.append("optimizer = optimizer_of(workload, [p for p in model.parameters() if p.requires_grad])")
    if settings.optimizer != "default":
        foreach, fused = _IMPLEMENTATIONS[settings.optimizer]
        lines += [
            "for group in (optimizer.defaults, *optimizer.param_groups):",
            f"    group.update(foreach={foreach}, fused={fused})",
            f"optimizer._step_supports_amp_scaling = {fused}  # as its constructor would",
        ]
    if settings.compile != "none":
        lines.append(f'model.compile(mode="{settings.compile}")')
    return "\n".join(f"    {line}" for line in lines)
