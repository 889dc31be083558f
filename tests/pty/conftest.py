"""Terminals for a test; whatever they still run is ended after it, and nothing of a program that ended may be left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .terminal import Terminal

Start = Callable[..., Terminal]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the program in a terminal: start(*arguments, size=(120, 40), environment={...})."""
    started: list[Terminal] = []

    def run(*arguments: str | Path, **how: Any) -> Terminal:
        started.append(Terminal(arguments, tmp_path, **how))
        return started[-1]

    yield run
    for terminal in started:
        terminal.close()
