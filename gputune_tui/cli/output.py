"""JSON output: to a file, or alone on stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gputune_tui.export.files import write_atomically


def write_json(target: str, document: dict[str, Any]) -> None:
    """Write the document to the file `target`, or to stdout where it is "-".

    Raises:
        UsageError, EnvironmentProblem: the file cannot be written.
    """
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if target == "-":
        click.echo(text, nl=False)
    else:
        write_atomically(Path(target), text, force=True)
