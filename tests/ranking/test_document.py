"""The JSON documents: keys as agreed, every knob, and only numbers that JSON has."""

from __future__ import annotations

import json
import math

from gputune_tui.domain.knobs import KNOB_BY_NAME
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import FailureReason, StepBreakdown
from gputune_tui.ranking.document import Skipped, ab_document, study_document
from gputune_tui.ranking.leaderboard import leaderboard
from gputune_tui.ranking.statistics import Ratio
from tests.ranking.make import BUDGET, MIB, complete, failed, identity, launch

BREAKDOWN = StepBreakdown(0.1, math.nan, 0.2, 0.3, 0.1, None, 0.0, 0.7)
TRIAL_KEYS = [
    "id",
    "settings",
    "state",
    "failure",
    "samples_per_s",
    "step_time_s",
    "breakdown",
    "memory",
    "feasible",
    "disqualified",
    "rank",
    "tied_with_best",
    "flags",
    "conditions",
]


def test_a_study_in_full() -> None:
    trials = [complete(3, launch(50.0, breakdown=BREAKDOWN)), failed(4, FailureReason.DEVICE_OOM, seen=7)]
    board = leaderboard(trials, BUDGET, trials[0].settings)
    skipped = [Skipped(TrainSettings(micro_batch_size=64), "predicted not to fit", 99 * MIB)]
    document = study_document("/studies/lm", identity(), BUDGET, board, skipped)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert list(document) == [
        "schema",
        "study",
        "workload",
        "environment",
        "budget",
        "global_batch_size",
        "trials",
        "skipped",
        "best",
    ]
    assert (document["schema"], document["study"], document["best"]) == (1, "/studies/lm", 3)
    assert document["workload"]["hash"] == "ab" * 32
    assert document["budget"]["device_bytes"] == 1024 * MIB
    good, bad = document["trials"]
    assert list(good) == list(bad) == TRIAL_KEYS
    assert list(good["settings"]) == list(KNOB_BY_NAME)
    assert (good["state"], good["failure"], good["rank"], good["tied_with_best"]) == ("COMPLETE", None, 1, True)
    assert sorted(good["samples_per_s"]) == ["blocks", "confidence", "high", "launches", "low", "steps", "value"]
    assert sorted(good["step_time_s"]) == ["median", "p95"]
    assert good["breakdown"]["copy_s"] is None, "NaN is no JSON"
    assert good["memory"]["device_peak_bytes"] == 100 * MIB
    assert bad["failure"] == {"reason": "DEVICE_OOM", "message": "what happened", "log": "/logs/trial"}
    assert (bad["samples_per_s"], bad["step_time_s"], bad["breakdown"], bad["rank"]) == (None,) * 4
    assert (bad["feasible"], bad["memory"]["device_peak_bytes"]) == (False, 7)
    assert document["skipped"][0]["settings"]["micro_batch_size"] == 64
    assert (document["skipped"][0]["rule"], document["skipped"][0]["predicted_bytes"]) == (
        "predicted not to fit",
        99 * MIB,
    )


def test_nothing_that_fits_has_no_best() -> None:
    board = leaderboard([failed(1, FailureReason.OVER_BUDGET)], BUDGET, None)
    document = study_document("s", identity(), BUDGET, board)
    assert (document["best"], document["skipped"]) == (None, [])


def test_a_comparison() -> None:
    board = leaderboard([complete(1, launch(50.0)), complete(2, launch(80.0))], BUDGET, None)
    a, b = board.row(1), board.row(2)
    assert a is not None
    assert b is not None
    document = ab_document(a, b, Ratio(1.6, 1.5, 1.7, 0.95), "faster", 6, 3, ["shared card"])
    assert list(document) == ["schema", "a", "b", "ratio", "verdict", "launches", "pairs", "flags"]
    assert document["a"]["settings"]["micro_batch_size"] == 1
    assert document["ratio"] == {"value": 1.6, "low": 1.5, "high": 1.7, "confidence": 0.95}
    assert (document["verdict"], document["flags"]) == ("faster", ["shared card"])
    unknown = ab_document(a, b, Ratio(math.nan, 0.0, math.inf, 0.95), "undecided", 2, 1)
    assert unknown["ratio"] == {"value": None, "low": 0.0, "high": None, "confidence": 0.95}
    assert ab_document(a, b, None, "undecided", 0, 0)["ratio"] is None
