"""Where studies lie by default, and what is known of each."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import TrialState
from gputune_tui.errors import GputuneError
from gputune_tui.store.reading import read_study

MAX_NAME = 80


@dataclass(frozen=True)
class StudySummary:
    """One line of `gputune-tui studies`."""

    path: Path
    workload: str | None
    global_batch_size: int | None
    device: str | None
    states: dict[str, int]
    """Trials of the newest generation by state."""
    running: bool
    changed_at: float | None
    """Unix time of the last write."""
    problem: str | None = None


def studies_root() -> Path:
    """$XDG_STATE_HOME/gputune-tui/studies."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local/state") / "gputune-tui" / "studies"


def default_study_path(workload: WorkloadRef, device: str) -> Path:
    """Directory of a workload's study: a readable name, and a short hash where the name alone is ambiguous."""
    if workload.command:
        stem = next(
            (Path(w).stem for w in workload.command if w.endswith((".py", ".sh"))), Path(workload.command[0]).stem
        )
        exact = "\0".join((os.getcwd(), *workload.command))
    else:
        target = workload.name.partition(":")[0]
        is_file = target.endswith(".py") or "/" in target
        stem = Path(target).stem if is_file else workload.name
        exact = os.path.abspath(target) + workload.name if is_file else ""
    options = [f"{key}={value}" for key, value in sorted(workload.options.items())]
    readable = "-".join([stem, *options, device.replace(":", "")])
    safe = re.sub(r"[^\w.=+-]+", "_", readable).strip("._") or "study"
    if exact or safe != readable or len(safe) > MAX_NAME:
        safe = f"{safe[:MAX_NAME]}-{hashlib.sha256((readable + exact).encode()).hexdigest()[:8]}"
    return studies_root() / safe


def list_studies(root: Path) -> list[StudySummary]:
    """Every study under `root`, the newest first; a damaged one is listed with its problem."""
    if not root.is_dir():
        return []
    found = [summarise(path) for path in sorted(root.iterdir()) if path.is_dir()]
    return sorted(found, key=lambda s: -(s.changed_at or 0))


def summarise(path: Path) -> StudySummary:
    """What one study holds."""
    try:
        contents = read_study(path)
    except GputuneError as error:
        return StudySummary(path, None, None, None, {}, False, None, str(error))
    times = [journal.stat().st_mtime for journal in path.glob("journal-*.jsonl")]
    changed = max(times, default=None)
    current = contents.current
    if current is None:
        return StudySummary(path, None, None, None, {}, False, changed)
    states = Counter(trial.state.value for trial in current.trials)
    identity = current.identity
    options = "".join(f" -D {key}={value}" for key, value in identity.workload.options.items())
    return StudySummary(
        path=path,
        workload=identity.workload.name + options,
        global_batch_size=identity.global_batch_size,
        device=identity.environment.device_name or identity.environment.device,
        states=dict(states),
        running=any(trial.state is TrialState.RUNNING for trial in current.trials) or bool(contents.other_writers),
        changed_at=changed,
    )
