"""The content of gputune.yaml as JSON, for programs that read no YAML."""

from __future__ import annotations

import json

from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered
from gputune_tui.export.yaml_config import document_of


def render(report: ExportReport) -> Rendered:
    """The file; `verify` reads it, too, since JSON is YAML."""
    return Rendered(json.dumps(document_of(report), indent=2, ensure_ascii=True, allow_nan=False) + "\n")
