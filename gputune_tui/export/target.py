"""What a target's module gives: its file's text, and what the file cannot hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gputune_tui.export.evidence import comments, evidence_lines, where_lines
from gputune_tui.export.report import ExportReport
from gputune_tui.export.yaml_text import yaml_text


@dataclass(frozen=True)
class Rendered:
    """A file for a target."""

    text: str
    remarks: tuple[str, ...] = ()
    """What the target cannot hold, or needs beside the file: a sentence each, in the text as comments, too."""


def head_lines(report: ExportReport, purpose: str, remarks: Iterable[str]) -> list[str]:
    """What every file begins with: its purpose, the evidence, where it holds, and what is not in it."""
    return [purpose, *evidence_lines(report), *where_lines(report), *remarks]


def yaml_file(report: ExportReport, purpose: str, keys: Mapping[str, Any], remarks: tuple[str, ...]) -> Rendered:
    """A YAML file of a target's own keys under comments."""
    return Rendered(comments(head_lines(report, purpose, remarks)) + yaml_text(keys), remarks)
