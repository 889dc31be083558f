"""The JSON documents (schema 1) of `tune`, `trial` and `ab`; a number that is not finite becomes null."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gputune_tui.domain.plain import to_plain
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget, StudyIdentity
from gputune_tui.domain.trial import MemoryPeaks
from gputune_tui.ranking.leaderboard import Leaderboard, Row
from gputune_tui.ranking.statistics import Ratio, StepTime, Verdict
from gputune_tui.ranking.surroundings import launch_entry

SCHEMA = 1

Document = dict[str, Any]


@dataclass(frozen=True)
class Skipped:
    """A setting that was not run."""

    settings: TrainSettings
    rule: str
    """Why, in words."""
    predicted_bytes: int | None = None


def study_document(
    study: str, identity: StudyIdentity, budget: MemoryBudget, board: Leaderboard, skipped: Iterable[Skipped] = ()
) -> Document:
    """The document of `tune` and `trial`.

    `study` is the directory's path; `trials` are in the leaderboard's order; `best` is the id of the trial with rank
    1, or null.
    """
    workload = identity.workload
    return _document(
        {
            "schema": SCHEMA,
            "study": study,
            "workload": {**to_plain(workload), "hash": identity.content_hash},
            "environment": to_plain(identity.environment),
            "budget": to_plain(budget),
            "global_batch_size": identity.global_batch_size,
            "trials": [trial_entry(row) for row in board.rows],
            "skipped": [{**to_plain(item), "settings": item.settings.as_dict()} for item in skipped],
            "best": board.best.trial.id if board.best else None,
        }
    )


def ab_document(
    a: Row,
    b: Row,
    ratio: Ratio | None,
    verdict: Verdict,
    launches: int,
    pairs: int,
    flags: Iterable[str] = (),
) -> Document:
    """The document of `ab`: `a` and `b` are entries as in `trials` of `tune`, `ratio` is B over A or null."""
    return _document(
        {
            "schema": SCHEMA,
            "a": trial_entry(a),
            "b": trial_entry(b),
            "ratio": to_plain(ratio),
            "verdict": verdict,
            "launches": launches,
            "pairs": pairs,
            "flags": list(flags),
        }
    )


def trial_entry(row: Row) -> Document:
    """One trial of a document, every knob of its settings included; null where nothing was measured."""
    trial = row.trial
    failure = trial.failure
    return _document(
        {
            "id": trial.id,
            "settings": trial.settings.as_dict(),
            "state": trial.state.value,
            "failure": failure and {"reason": failure.reason.value, "message": failure.message, "log": failure.log},
            "samples_per_s": to_plain(row.throughput),
            "step_time_s": step_time_entry(row.step_time),
            "breakdown": to_plain(row.breakdown),
            "memory": to_plain(row.memory or MemoryPeaks()),
            "feasible": row.feasible,
            "disqualified": row.disqualified,
            "rank": row.rank,
            "tied_with_best": row.tied_with_best,
            "flags": list(row.flags),
            "conditions": [launch_entry(launch) for launch in trial.launches],
        }
    )


def step_time_entry(value: StepTime | None) -> dict[str, float] | None:
    """Step times under the names that every document uses."""
    return None if value is None else {"median": value.median_s, "p95": value.p95_s}


def _document(value: Document) -> Document:
    return {key: _finite(item) for key, item in value.items()}


def _finite(value: Any) -> Any:
    """The same with null for every number that JSON does not have (NaN and infinities)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
