"""Plain text tables for stdout: aligned columns, numbers to the right, unknown as N/A."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from gputune_tui.cli.wording import printable, settings_text, speed_text
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import TrialState
from gputune_tui.ranking.leaderboard import Leaderboard, Row
from gputune_tui.units import UNKNOWN, bytes_text, percent_text, ratio_text


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: frozenset[int] = frozenset()) -> str:
    """Columns two spaces apart; those in `left` are left-aligned, the last one is not padded."""
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        parts = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - display_width(cell))
            parts.append(cell + padding if index in left else padding + cell)
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def display_width(text: str) -> int:
    """Terminal columns that a text takes: wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def leaderboard_table(board: Leaderboard, budget: MemoryBudget, reference: TrainSettings | None) -> str:
    """The ranking as text: what fits first, `=` for "not separated from the fastest", then why the others have none."""
    header = ("#", "samples/s", "vs base", f"peak of {bytes_text(budget.device_bytes)}", "data wait", "settings")
    rows = [_cells(row, reference) for row in board.rows]
    return table(header, rows, left=frozenset({5}))


def _cells(row: Row, reference: TrainSettings | None) -> tuple[str, ...]:
    rank = "-" if row.rank is None else f"{'=' if row.tied_with_best and row.rank > 1 else ''}{row.rank}"
    breakdown = row.breakdown
    waiting = breakdown.data_wait_s if breakdown else None
    share = percent_text(waiting / breakdown.total_s) if breakdown and waiting is not None else UNKNOWN
    peak = row.memory.device_peak_bytes if row.memory else None
    settings = settings_text(row.trial.settings, reference)
    why = _why_unranked(row)
    notes = "; ".join(filter(None, (why, *row.flags)))
    return (
        rank,
        speed_text(row.throughput) if row.trial.state is TrialState.COMPLETE else UNKNOWN,
        ratio_text(row.ratio_to_reference) if row.trial.state is TrialState.COMPLETE else UNKNOWN,
        bytes_text(peak),
        share,
        f"{settings}  [{notes}]" if notes else settings,
    )


def _why_unranked(row: Row) -> str | None:
    failure = row.trial.failure
    if failure is not None:
        return f"{failure.reason.value}: {failure.message}"
    if row.trial.state is not TrialState.COMPLETE:
        return str(row.trial.state.value).lower()
    if row.disqualified is not None:
        return f"disqualified: {row.disqualified}"
    if row.feasible is False:
        return "over budget"
    return "memory peak unknown" if row.feasible is None else None
