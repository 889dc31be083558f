"""A report for people: the chosen settings, why they are believed, and the whole ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gputune_tui.domain.knobs import KNOB_BY_NAME, value_text
from gputune_tui.export.evidence import evidence_lines, one_line, where_lines
from gputune_tui.export.measured import Measured
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered
from gputune_tui.ranking.leaderboard import Row
from gputune_tui.ranking.wording import data_wait_text, rank_text, settings_text, speed_text, why_unranked
from gputune_tui.units import bytes_text, ratio_text

HEADER = ("#", "samples/s", "vs baseline", "peak", "data wait", "settings", "notes")


def render(report: ExportReport) -> Rendered:
    """GitHub-flavoured Markdown."""
    return Rendered("\n".join(_lines(report)) + "\n")


def _lines(report: ExportReport) -> Iterator[str]:
    yield f"# {_cell(report.workload.name)}: chosen settings"
    yield ""
    yield from (f"- {_cell(line)}" for line in (*evidence_lines(report), *where_lines(report)))
    yield ""
    knobs = Measured(report)
    yield from _table(
        ("knob", "value"), [(name, value_text(knobs.value(name))) for name in KNOB_BY_NAME if name in knobs]
    )
    if report.rows:
        yield ""
        yield "## Ranking"
        yield ""
        yield (
            f"Within {bytes_text(report.budget.device_bytes)}; `=` is not separated from the fastest: those go by "
            "memory, the others by throughput."
        )
        yield ""
        yield from _table(HEADER, [_row(row, report) for row in report.rows])
    yield ""
    yield "## Again"
    yield ""
    yield from ("```sh", report.command, "```")


def _row(row: Row, report: ExportReport) -> tuple[str, ...]:
    peak = row.memory.device_peak_bytes if row.memory else None
    notes = "; ".join(filter(None, (why_unranked(row), *row.flags)))
    mark = " **chosen**" if row.trial.settings == report.settings else ""
    return (
        rank_text(row),
        speed_text(row.throughput),
        ratio_text(row.ratio_to_reference),
        bytes_text(peak),
        data_wait_text(row),
        settings_text(row.trial.settings, report.reference) + mark,
        notes,
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    yield from (f"| {' | '.join(map(_cell, row))} |" for row in rows)


def _cell(text: str) -> str:
    """The text without anything that could end a cell or a line."""
    return one_line(text).replace("|", "\\|")
