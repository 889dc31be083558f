"""The formats that chosen settings can be written in: one row each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gputune_tui.errors import UsageError
from gputune_tui.export import yaml_config
from gputune_tui.export.report import ExportReport


@dataclass(frozen=True)
class Exporter:
    """One target format."""

    name: str
    """As `--to` takes it."""
    suffix: str
    """Of the file, dot included."""
    render: Callable[[ExportReport], str]


def exporters() -> dict[str, Exporter]:
    """All formats by name."""
    return {exporter.name: exporter for exporter in (Exporter("yaml", ".yaml", yaml_config.render),)}


def exporter_named(name: str) -> Exporter:
    """The format of that name.

    Raises:
        UsageError: there is none.
    """
    known = exporters()
    if name not in known:
        raise UsageError(f"unknown export format {name!r}; formats are: {', '.join(known)}")
    return known[name]
