"""Reports made up for the tests of export."""

from __future__ import annotations

from dataclasses import replace

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.export.report import ExportReport, report_of
from gputune_tui.ranking.leaderboard import leaderboard
from tests.ranking.make import BUDGET, complete, identity, launch

BASE = TrainSettings(micro_batch_size=16)
CHOSEN = replace(BASE, precision="bf16", micro_batch_size=8, accumulation_steps=2)


def report() -> ExportReport:
    """The report of a setting that beats the baseline by half."""
    trials = [
        complete(1, launch(100.0, 101.0), settings=BASE),
        complete(2, launch(150.0, 151.5, notes=("cached data",)), settings=CHOSEN),
    ]
    board = leaderboard(trials, BUDGET, BASE)
    row = board.row(2)
    assert row is not None
    return report_of(row, board, identity(), BUDGET, BASE, "gputune-tui tune lm -D size=tiny --device cpu")
