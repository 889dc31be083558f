"""Run a script in a process of its own with knobs set in it, and read back what it has trained."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gputune_tui.domain.job import RUN_VARIABLE, Job, ScriptOrder
from gputune_tui.domain.plain import to_plain
from gputune_tui.domain.script import ScriptFacts
from gputune_tui.domain.script_order import script_order
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trial.launcher import process_environment

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run_script(
    arguments: Sequence[str], settings: TrainSettings | None = None, order: ScriptOrder | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `python SCRIPT ARGUMENTS` to its end, under `settings` where these are given."""
    command = (sys.executable, str(SCRIPTS / arguments[0]), *arguments[1:])
    job = Job("run", WorkloadRef("s", command=command), settings=settings, script=order or ScriptOrder(), threads=1)
    environment = process_environment(job) if settings else dict(os.environ)
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **variables}
    if settings is not None:
        environment[RUN_VARIABLE] = json.dumps(to_plain(job))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def trained(path: Path) -> torch.Tensor:
    """All weights of a saved model in one vector."""
    state: dict[str, Any] = torch.load(path)
    return torch.cat([value.double().flatten() for value in state.values()])


def relative_l2(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of the difference of all weights."""
    return float((found - wanted).norm() / wanted.norm())


def order_of(facts: ScriptFacts, settings: TrainSettings) -> ScriptOrder:
    """What is set in a script to run under `settings`."""
    return script_order(WorkloadRef("s", command=("python",)), facts, settings, "cpu")
