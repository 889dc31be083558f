"""Commands and events survive JSON: the engine must be able to live in a process of its own."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest

from gputune_tui.domain.conditions import Neighbour
from gputune_tui.domain.environment import Environment
from gputune_tui.domain.plain import from_plain, to_plain
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget, StudyIdentity, WorkloadRef
from gputune_tui.domain.trial import Trial, TrialState
from gputune_tui.engine.commands import Command, Compare, MeasureAgain, RunSettings, RunTrial, Search, StudyConfig
from gputune_tui.engine.events import (
    Compared,
    Confirming,
    Contender,
    DeviceInUse,
    Dropped,
    EngineEvent,
    Exported,
    PairFinished,
    Previewed,
    Problem,
    QueueChanged,
    RaceFinished,
    RoundFinished,
    SearchFinished,
    SearchPlanned,
    StudyOpened,
    StudyTrials,
    TaskEnded,
    TaskStarted,
    TrialFinished,
    TrialProgress,
    TrialStarted,
)

SETTINGS = TrainSettings(precision="bf16", num_workers=2, prefetch_factor=4)
TRIAL = Trial(3, SETTINGS, TrialState.COMPLETE)
WORKLOAD = WorkloadRef("lm", {"size": "tiny"})
ENVIRONMENT = Environment("host", "cpu", None, None, None, None, "2.6", "3.11", 2.0, 1 << 34, None)
IDENTITY = StudyIdentity(WORKLOAD, "abc", 16, ENVIRONMENT)

MESSAGES: list[Any] = [
    StudyConfig(WORKLOAD, baseline={"pin_memory": True, "num_workers": 2, "prefetch_factor": None}),
    Search("precision=fp32,bf16", race=True),
    RunTrial({"precision": "bf16", "persistent_workers": False, "num_workers": 1}),
    RunSettings(SETTINGS, 3),
    Compare({"num_workers": 0}, {"num_workers": 2}, 0.05, 60.0),
    MeasureAgain((3, 7)),
    DeviceInUse("cuda:0", (Neighbour(4711, "alice", 2 << 30, "python train.py"),)),
    StudyOpened("/s", IDENTITY, 1, MemoryBudget(1 << 30), 2, ("a note",)),
    SearchPlanned("precision=fp32", True, 4, 1, 2, 3, SETTINGS),
    TrialStarted(1, SETTINGS, 1, None, "A"),
    TrialProgress(1, "measure", blocks=2, planned_blocks=8, samples_per_s=12.5),
    TrialFinished(TRIAL, 1, 4, 12.0),
    PairFinished(1, 1.1, 1.0, 1.2, "undecided"),
    Confirming(3, 2),
    Dropped(Contender(7, "slower", 0.6, 0.5, 0.7), 3),
    RoundFinished(3, 3, (Contender(5, "undecided", 0.97, 0.9, 1.05),)),
    RaceFinished(3, (Contender(5, "tied", 1.0, 0.98, 1.01), Contender(6, "set aside")), 0.03, 62.0),
    SearchFinished(None),
    Compared(TRIAL, TRIAL, 1.0, 0.9, 1.1, 0.95, "tied", 6, 3, ("A: x",)),
    Problem("disk full"),
    StudyTrials((TRIAL, TRIAL), SETTINGS, first=True, last=False),
    TaskStarted("search"),
    TaskEnded("trial", None, 130, cancelled=True),
    Exported("/tmp/gputune.yaml", 3, ("TrainingArguments has no key for channels_last=true",)),
    Previewed(None, "python", "import torch\n"),
    Previewed(3, "python", "", "a command is a training script already"),
    QueueChanged(("trial", "a/b")),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_round_trip(message: Any) -> None:
    assert from_plain(type(message), json.loads(json.dumps(to_plain(message)))) == message


def test_every_message_is_covered() -> None:
    assert {type(m) for m in MESSAGES} == {*get_args(Command), *get_args(EngineEvent), StudyConfig}
    for message in MESSAGES:
        for field in fields(message):
            assert field.default is not MISSING or hasattr(message, field.name)
