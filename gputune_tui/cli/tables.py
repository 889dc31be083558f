"""Plain text tables for stdout: aligned columns, numbers to the right, unknown as N/A."""

from __future__ import annotations

from collections.abc import Sequence

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import TrialState
from gputune_tui.ranking.leaderboard import Leaderboard, Row
from gputune_tui.ranking.wording import data_wait_text, rank_text, settings_text, speed_text, why_unranked
from gputune_tui.text import display_width, printable
from gputune_tui.units import UNKNOWN, bytes_text, ratio_text


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


def leaderboard_table(board: Leaderboard, budget: MemoryBudget, reference: TrainSettings | None) -> str:
    """The ranking as text: what fits first, `=` for "not separated from the fastest", then why the others have none."""
    header = ("#", "samples/s", "vs base", f"peak of {bytes_text(budget.device_bytes)}", "data wait", "settings")
    rows = [_cells(row, reference) for row in board.rows]
    return table(header, rows, left=frozenset({5}))


def _cells(row: Row, reference: TrainSettings | None) -> tuple[str, ...]:
    peak = row.memory.device_peak_bytes if row.memory else None
    settings = settings_text(row.trial.settings, reference)
    why = why_unranked(row)
    notes = "; ".join(filter(None, (why, *row.flags)))
    return (
        rank_text(row),
        speed_text(row.throughput) if row.trial.state is TrialState.COMPLETE else UNKNOWN,
        ratio_text(row.ratio_to_reference) if row.trial.state is TrialState.COMPLETE else UNKNOWN,
        bytes_text(peak),
        data_wait_text(row),
        f"{settings}  [{notes}]" if notes else settings,
    )
