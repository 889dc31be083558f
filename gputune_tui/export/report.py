"""What is exported: the chosen settings with everything that is known of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from gputune_tui.domain.environment import Environment
from gputune_tui.domain.job import ScriptOrder
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget, StudyIdentity, WorkloadRef
from gputune_tui.domain.trial import MemoryPeaks
from gputune_tui.ranking.leaderboard import Leaderboard, Row
from gputune_tui.ranking.statistics import StepTime, Throughput


@dataclass(frozen=True)
class BaselineComparison:
    """The baseline beside the chosen settings."""

    differs_in: str
    """The baseline's values of the knobs that differ from the chosen ones, as `K=V,...`; empty where none does."""
    samples_per_s: float | None
    ratio: float | None
    """Throughput of the chosen settings over the baseline's."""


@dataclass(frozen=True)
class ExportReport:
    """Chosen settings and their evidence; `gputune.yaml` holds all of this but the ranking."""

    workload: WorkloadRef
    """Its name is an absolute path where it is a file."""
    content_hash: str
    settings: TrainSettings
    global_batch_size: int
    budget: MemoryBudget
    throughput: Throughput | None
    step_time: StepTime | None
    warmup_steps: int | None
    """Optimizer steps before the first timed block, of the launch with the longest warm-up."""
    memory: MemoryPeaks | None
    baseline: BaselineComparison | None
    guard: str
    """Verdict of the guard: "passed", "baseline", "not checked", or what is wrong."""
    flags: tuple[str, ...]
    environment: Environment
    command: str
    """The command line that reproduces it."""
    script: ScriptOrder | None = None
    """Of a command that was looked at: what was set in it from outside."""
    rows: tuple[Row, ...] = field(default=(), compare=False)
    """The ranking that it was chosen from; empty where this was read from a file."""
    reference: TrainSettings | None = field(default=None, compare=False)
    """The baseline of the ranking."""


def report_of(
    row: Row,
    board: Leaderboard,
    identity: StudyIdentity,
    budget: MemoryBudget,
    reference: TrainSettings | None,
    command: str,
    script: ScriptOrder | None = None,
) -> ExportReport:
    """The report of one row of a leaderboard; `reference` is the setting that the leaderboard compared with."""
    launches = row.trial.launches
    return ExportReport(
        workload=identity.workload,
        content_hash=identity.content_hash,
        settings=row.trial.settings,
        global_batch_size=identity.global_batch_size,
        budget=budget,
        throughput=row.throughput,
        step_time=row.step_time,
        warmup_steps=max((launch.warmup_steps for launch in launches), default=None),
        memory=row.memory,
        baseline=_baseline(row, board, reference),
        guard=row.guard,
        flags=row.flags,
        environment=identity.environment,
        command=command,
        script=script,
        rows=board.rows,
        reference=reference,
    )


def _baseline(row: Row, board: Leaderboard, reference: TrainSettings | None) -> BaselineComparison | None:
    if reference is None:
        return None
    measured = (other.throughput for other in board.rows if other.trial.settings == reference and other.throughput)
    base = next(measured, None)
    return BaselineComparison(
        reference.text(row.trial.settings), base.value if base else None, row.ratio_to_reference
    )  # fmt: skip
