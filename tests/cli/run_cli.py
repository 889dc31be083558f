"""Run the command line as a user does: a process of its own, its exit code, stdout and stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TIMEOUT_S = 280


def gputune(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `gputune-tui` with these arguments; no traceback may ever reach the user."""
    done = subprocess.run(
        [sys.executable, "-m", "gputune_tui", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "internal error" not in done.stderr, done.stderr
    return done


def document(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON on stdout of a run with `--json -`."""
    return json.loads(done.stdout)
