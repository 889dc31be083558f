"""Where studies lie by default, and what is known of each."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import TrialState
from gputune_tui.errors import EnvironmentProblem, GputuneError, StudyError
from gputune_tui.store.journal import JOURNAL_PATTERN
from gputune_tui.store.reading import read_study

MAX_NAME_BYTES = 120
"""File systems allow 255 bytes."""


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
    """$XDG_STATE_HOME/gputune-tui/studies; the variable counts only with an absolute path, as its specification says.

    Raises:
        EnvironmentProblem: the variable is not set and this user has no home.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:
            raise EnvironmentProblem(
                "there is no place for studies: this user has no home directory; set XDG_STATE_HOME or give --study"
            ) from None
    return state / "gputune-tui" / "studies"


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
    if exact or safe != readable or len(safe.encode()) > MAX_NAME_BYTES:
        digest = hashlib.sha256((readable + exact).encode(errors="surrogatepass")).hexdigest()
        safe = f"{safe.encode()[:MAX_NAME_BYTES].decode(errors='ignore')}-{digest[:8]}"
    return studies_root() / safe


def list_studies(root: Path) -> list[StudySummary]:
    """Every study under `root`, the newest first; a damaged one is listed with its problem.

    Raises:
        StudyError: `root` itself cannot be read.
    """
    try:
        found = [summarise(path) for path in sorted(root.iterdir()) if path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StudyError(f"cannot read {root}: {error.strerror}; set XDG_STATE_HOME to another place") from error
    return sorted(found, key=lambda s: -(s.changed_at or 0))


def summarise(path: Path) -> StudySummary:
    """What one study holds."""
    try:
        contents = read_study(path)
    except GputuneError as error:
        return StudySummary(path, None, None, None, {}, False, _changed_at(path), str(error))
    changed = _changed_at(path)
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
        states=dict(sorted(states.items())),
        running=any(trial.state is TrialState.RUNNING for trial in current.trials) or bool(contents.other_writers),
        changed_at=changed,
    )


def _changed_at(path: Path) -> float | None:
    """Time of the last write to any journal; None where there is none."""
    times = []
    with suppress(OSError):  # it may be deleted, or closed to this user, at this moment
        for journal in path.glob(JOURNAL_PATTERN):
            times.append(journal.stat().st_mtime)
    return max(times, default=None)
