"""Reports made up for the tests of export."""

from __future__ import annotations

from dataclasses import replace

from gputune_tui.domain.knobs import KnobValue
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.export.report import ExportReport, report_of
from gputune_tui.ranking.leaderboard import leaderboard
from tests.ranking.make import BUDGET, complete, identity, launch

BASE = TrainSettings(micro_batch_size=16)
CHOSEN = replace(BASE, precision="bf16", micro_batch_size=8, accumulation_steps=2)


def report(settings: TrainSettings = CHOSEN) -> ExportReport:
    """The report of a setting that beats the baseline by half."""
    trials = [
        complete(1, launch(100.0, 101.0), settings=BASE),
        complete(2, launch(150.0, 151.5, notes=("cached data",)), settings=settings),
    ]
    board = leaderboard(trials, BUDGET, BASE)
    row = board.row(2)
    assert row is not None
    return report_of(row, board, identity(), BUDGET, BASE, "gputune-tui tune lm -D size=tiny --device cpu")


def report_on(device: str, **knobs: KnobValue) -> ExportReport:
    """The report of the baseline with some other knobs, measured on "cpu" or "cuda:0"."""
    found = report(replace(BASE, **knobs))  # type: ignore[arg-type]  # knobs by name
    return replace(found, environment=replace(found.environment, device=device))


def command_report(*command: str, **knobs: KnobValue) -> ExportReport:
    """The same of a command as workload."""
    found = report_on("cpu", **knobs)
    return replace(found, workload=WorkloadRef(" ".join(command), {}, command, 16))
