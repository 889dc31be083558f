"""An engine process for a test, ended afterwards whatever happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .driving import Talk, wait_all_gone


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    """A running engine; nothing of it may be left after the test."""
    talk = Talk()
    yield talk
    talk.client.close()
    assert not talk.client.alive
    assert talk.client.pid is not None
    wait_all_gone(tmp_path, talk.client.pid)
