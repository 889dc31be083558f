"""`ab`: one interleaved comparison and its verdict in words."""

from __future__ import annotations

from typing import Any

import click

from gputune_tui.cli.driving import drive
from gputune_tui.cli.options import study_config
from gputune_tui.cli.output import write_json
from gputune_tui.cli.progress import ProgressPrinter
from gputune_tui.cli.tuning import failure_of
from gputune_tui.domain.knobs import read_assignments
from gputune_tui.engine.commands import Compare
from gputune_tui.engine.comparing import NOT_MEASURED
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import Compared, EngineEvent
from gputune_tui.ranking.document import ab_document
from gputune_tui.ranking.leaderboard import Row, leaderboard
from gputune_tui.ranking.statistics import Ratio
from gputune_tui.ranking.wording import settings_text, speed_text, verdict_text
from gputune_tui.units import bytes_text, parse_duration, parse_fraction


def ab(command: tuple[str, ...] | None, given: dict[str, Any]) -> None:
    """Body of `ab`.

    Raises:
        GputuneError: an arm failed; the class is that of its reason.
    """
    max_time = given["max_time"]
    margin = parse_fraction(given["margin"])
    order = Compare(
        a=read_assignments(given["knobs_a"]),
        b=read_assignments(given["knobs_b"]),
        margin_fraction=margin,
        max_time_s=None if max_time is None else parse_duration(max_time),
    )
    results: list[Compared] = []

    def listen(event: EngineEvent) -> None:
        if isinstance(event, Compared):
            results.append(event)

    engine = Engine()
    drive(engine, study_config(command, given), [order], ProgressPrinter(), listen)
    result = results[-1]
    rows = arms(engine, result)
    if given["json_path"] is not None:
        document = ab_document(*rows, ratio_of(result), result.verdict, result.launches, result.pairs, result.flags)
        write_json(given["json_path"], document)
    if given["json_path"] != "-":
        click.echo(words(rows, result))
    for trial in (result.a, result.b):
        if trial.failure is not None and trial.failure.message != NOT_MEASURED:
            raise failure_of(trial)


def arms(engine: Engine, result: Compared) -> tuple[Row, Row]:
    """The rows of A and B; B is held against A."""
    board = leaderboard([result.a, result.b], engine.session.opened.budget, result.a.settings)
    first, second = board.row(result.a.id), board.row(result.b.id)
    assert first is not None
    assert second is not None
    return first, second


def ratio_of(result: Compared) -> Ratio | None:
    """The ratio as one value."""
    if result.ratio is None or result.low is None or result.high is None:
        return None
    return Ratio(result.ratio, result.low, result.high, result.confidence)


def words(rows: tuple[Row, Row], result: Compared) -> str:
    """The verdict as a person says it, and what it rests on."""
    said = verdict_text(result.verdict, ratio_of(result), result.margin_fraction, result.elapsed_s)
    lines = [f"{said}, {result.pairs} launch {'pair' if result.pairs == 1 else 'pairs'}"]
    for name, row in zip("AB", rows, strict=True):
        peak = row.memory.device_peak_bytes if row.memory else None
        settings = settings_text(row.trial.settings, None)
        lines.append(f"{name}  {speed_text(row.throughput)} samples/s  peak {bytes_text(peak)}  {settings}")
    return "\n".join([*lines, *(f"note: {flag}" for flag in result.flags)])
