"""gputune.yaml (schema 1): chosen settings with their evidence, written for any YAML reader and read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gputune_tui.domain.environment import Environment
from gputune_tui.domain.job import ScriptOrder
from gputune_tui.domain.knobs import KNOB_BY_NAME
from gputune_tui.domain.plain import to_plain
from gputune_tui.domain.settings import TrainSettings, settings_from_dict
from gputune_tui.domain.study import MemoryBudget, WorkloadRef
from gputune_tui.domain.trial import MemoryPeaks
from gputune_tui.errors import ConfigFileError, UsageError
from gputune_tui.export.evidence import comments, evidence_lines
from gputune_tui.export.report import BaselineComparison, ExportReport
from gputune_tui.export.strict_yaml import Item, load, mapping_of, read
from gputune_tui.export.target import Rendered
from gputune_tui.export.yaml_text import builtin, yaml_text
from gputune_tui.ranking.statistics import StepTime, Throughput

SCHEMA = 1
MAX_FILE_BYTES = 1 << 20
"""A larger file is no configuration of ours."""


@dataclass(frozen=True)
class _Workload:
    name: str
    options: Mapping[str, str]
    hash: str
    command: tuple[str, ...] = ()
    samples_per_step: int | None = None
    flags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    script: ScriptOrder | None = None
    """Of a command: the knobs that were set in it from outside."""


@dataclass(frozen=True)
class _StepTime:
    median: float
    p95: float


@dataclass(frozen=True)
class _Evidence:
    samples_per_s: Throughput | None = None
    step_time_s: _StepTime | None = None
    warmup_steps: int | None = None
    memory: MemoryPeaks | None = None
    baseline: BaselineComparison | None = None
    guard: str = "not checked"
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Document:
    """The file's keys, in their order."""

    schema: int
    workload: _Workload
    settings: TrainSettings
    global_batch_size: int
    budget: MemoryBudget
    evidence: _Evidence
    environment: Environment
    command: str


def render(report: ExportReport) -> Rendered:
    """The file's text: a comment with the evidence in words, then the document in plain YAML scalars."""
    head = [*evidence_lines(report), "check it on this machine: gputune-tui verify FILE"]
    return Rendered(comments(head) + yaml_text(document_of(report)))


def document_of(report: ExportReport) -> dict[str, Any]:
    """The file's content in builtin types."""
    workload, step = report.workload, report.step_time
    document = _Document(
        SCHEMA,
        _Workload(
            workload.name,
            workload.options,
            report.content_hash,
            workload.command,
            workload.samples_per_step,
            workload.flags,
            report.script,
        ),
        report.settings,
        report.global_batch_size,
        report.budget,
        _Evidence(
            report.throughput,
            _StepTime(step.median_s, step.p95_s) if step else None,
            report.warmup_steps,
            report.memory,
            report.baseline,
            report.guard,
            report.flags,
        ),
        report.environment,
        report.command,
    )
    plain: dict[str, Any] = builtin({**to_plain(document), "settings": report.settings.as_dict()})
    if not workload.flags:
        del plain["workload"]["flags"]
    if report.script is None:
        del plain["workload"]["script"]
    return plain


def read_config(path: Path) -> ExportReport:
    """Read and check a file that `render` wrote or a person edited.

    Raises:
        ConfigFileError: it cannot be read or is not of schema 1: unknown, missing or duplicate key, wrong type, an
            impossible knob value or a batch that does not match; names the key and the line.
    """
    root = load(_text_of(path), str(path))
    schema = mapping_of(root).get("schema")
    if schema is None or type(schema.value) is not int:
        raise (schema or root).error(f"a gputune.yaml holds `schema: {SCHEMA}`")
    if schema.value != SCHEMA:
        raise schema.error(f"this version reads schema {SCHEMA}, not {schema.value}")
    document: _Document = read(root, _Document, {TrainSettings: _settings})
    _check(root, document)
    found, step = document.workload, document.evidence.step_time_s
    return ExportReport(
        WorkloadRef(found.name, found.options, found.command, found.samples_per_step, found.flags),
        found.hash,
        document.settings,
        document.global_batch_size,
        document.budget,
        document.evidence.samples_per_s,
        StepTime(step.median, step.p95) if step else None,
        document.evidence.warmup_steps,
        document.evidence.memory,
        document.evidence.baseline,
        document.evidence.guard,
        document.evidence.flags,
        document.environment,
        document.command,
        found.script,
    )


def _text_of(path: Path) -> str:
    try:
        if path.is_dir():
            raise ConfigFileError(f"{path} is a directory; give the YAML file itself")
        if path.exists() and not path.is_file():
            raise ConfigFileError(f"{path} is not a regular file; give the YAML file itself")
        with open(path, "rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigFileError(f"{path} is larger than 1 MiB, so it is no gputune.yaml")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigFileError(f"{path} does not exist; write one with `gputune-tui export STUDY --to yaml`") from None
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigFileError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise ConfigFileError(f"cannot read {str(path)!r}: {error}") from None


def _settings(item: Item) -> TrainSettings:
    values: dict[str, object] = {}
    for name, child in mapping_of(item).items():
        if name not in KNOB_BY_NAME:
            raise child.error(f"unknown knob; knobs are: {', '.join(KNOB_BY_NAME)}")
        try:
            settings_from_dict({name: child.value})
        except UsageError:
            raise child.error(f"takes {KNOB_BY_NAME[name].values}, got {child.described()}") from None
        values[name] = child.value
    return settings_from_dict(values)


def _check(root: Item, document: _Document) -> None:
    """What types alone do not say."""
    top = mapping_of(root)
    batch, settings = document.global_batch_size, document.settings
    if batch < 1:
        raise top["global_batch_size"].error(f"expected a whole number from 1, got {batch}")
    if settings.samples_per_step != batch:
        raise top["settings"].error(
            f"micro_batch_size {settings.micro_batch_size} x accumulation_steps {settings.accumulation_steps} x "
            f"world_size {settings.world_size} is not the global_batch_size of {batch}"
        )
    if document.budget.device_bytes < 1:
        raise mapping_of(top["budget"])["device_bytes"].error("expected a size above 0")
    speed = document.evidence.samples_per_s
    if speed is not None and not (0 < speed.low <= speed.value <= speed.high and 0 < speed.confidence < 1):
        raise mapping_of(top["evidence"])["samples_per_s"].error(
            "expected 0 < low <= value <= high and a confidence between 0 and 1"
        )
