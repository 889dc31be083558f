"""The settings as environment variables, for job scripts: `set -a; . FILE; set +a`."""

from __future__ import annotations

import shlex

from gputune_tui.domain.knobs import KNOB_BY_NAME, value_text
from gputune_tui.export.accelerate import ACCUMULATION_VARIABLE
from gputune_tui.export.evidence import comments
from gputune_tui.export.measured import Measured, cpu_threads, set_from_outside
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered, head_lines

PREFIX = "GPUTUNE_"


def variables(report: ExportReport) -> dict[str, str]:
    """What a trial had in its environment, GPUTUNE_<KNOB> of every measured knob (empty for null), and for a workload
    class what accelerate reads by itself: a command was measured without, and may accumulate by itself."""
    knobs = Measured(report)
    found = {PREFIX + name.upper(): _text(name, knobs) for name in KNOB_BY_NAME if name in knobs}
    if (threads := cpu_threads(report)) is not None:
        found |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if report.environment.device_kind == "cpu":
        found["CUDA_VISIBLE_DEVICES"] = ""
    if not report.workload.command:
        found[ACCUMULATION_VARIABLE] = str(knobs.value("accumulation_steps"))
        found["ACCELERATE_MIXED_PRECISION"] = knobs.mixed_precision or "no"
    return found


def _text(name: str, knobs: Measured) -> str:
    value = knobs.value(name)
    return "" if value is None else value_text(value)


def assignments(report: ExportReport) -> list[str]:
    """`NAME=value`, quoted for a shell."""
    return [f"{name}={shlex.quote(value) if value else ''}" for name, value in variables(report).items()]


def render(report: ExportReport) -> Rendered:
    """One assignment a line, which a shell, systemd and docker's --env-file read alike."""
    remarks = set_from_outside(report)
    head = head_lines(report, "the measured settings as environment variables: set -a; . FILE; set +a", remarks)
    return Rendered(comments(head) + "".join(f"{line}\n" for line in assignments(report)), remarks)
