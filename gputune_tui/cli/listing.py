"""`workloads` and `studies`: what there is."""

from __future__ import annotations

import time

import click

from gputune_tui.cli.output import write_json
from gputune_tui.cli.tables import table
from gputune_tui.domain.builtin import builtin_names, builtin_path, summary
from gputune_tui.domain.plain import to_plain
from gputune_tui.store.places import StudySummary, list_studies, studies_root
from gputune_tui.units import UNKNOWN


def workloads() -> None:
    """Body of `workloads`: name, summary and file of each built-in workload."""
    rows = []
    for name in builtin_names():
        path = builtin_path(name)
        assert path is not None
        rows.append((name, summary(path), str(path)))
    click.echo(table(("name", "what it trains", "file"), rows, left=frozenset({0, 1, 2})))


def studies(json_path: str | None) -> None:
    """Body of `studies`: the studies in the default place, newest first."""
    found = list_studies(studies_root())
    if json_path is not None:
        entries = [{**to_plain_summary(s)} for s in found]
        write_json(json_path, {"schema": 1, "studies": entries})
    if json_path == "-":
        return
    if not found:
        click.echo(f"no studies in {studies_root()}", err=True)
        return
    header = ("study", "workload", "batch", "device", "trials", "changed")
    click.echo(table(header, [_row(s) for s in found], left=frozenset({0, 1, 3, 4, 5})))
    for study in found:
        if study.problem:
            click.echo(f"{study.path.name}: {study.problem}", err=True)


def to_plain_summary(study: StudySummary) -> dict[str, object]:
    """A study's entry in the JSON list."""
    return {
        "path": str(study.path),
        "workload": study.workload,
        "global_batch_size": study.global_batch_size,
        "device": study.device,
        "trials": to_plain(study.states),
        "running": study.running,
        "changed_at": study.changed_at,
        "problem": study.problem,
    }


def _row(study: StudySummary) -> tuple[str, ...]:
    states = ", ".join(f"{count} {state}" for state, count in sorted(study.states.items()))
    changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(study.changed_at)) if study.changed_at else UNKNOWN
    return (
        study.path.name,
        study.workload or UNKNOWN,
        UNKNOWN if study.global_batch_size is None else str(study.global_batch_size),
        study.device or UNKNOWN,
        ("RUNNING: " if study.running else "") + (states or "damaged" if study.problem else states or "none"),
        changed,
    )
