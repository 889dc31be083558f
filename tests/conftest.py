"""Tests that need root: skipped elsewhere with the reason, and counted at the end of every run that has some."""

from __future__ import annotations

import os
from typing import Any

import pytest

PRIVILEGED = "privileged"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs root where there is none."""
    if item.get_closest_marker(PRIVILEGED) is not None and os.geteuid() != 0:
        pytest.skip("needs root (mounts, namespaces, cgroups)")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many of them were run and how many skipped."""
    counts = {
        outcome: len(
            {report.nodeid for report in terminalreporter.getreports(outcome) if PRIVILEGED in report.keywords}
        )
        for outcome in ("passed", "failed", "error", "skipped")
    }
    if any(counts.values()):
        run = counts["passed"] + counts["failed"] + counts["error"]
        terminalreporter.write_line(f"tests that need root: {run} run, {counts['skipped']} skipped")
