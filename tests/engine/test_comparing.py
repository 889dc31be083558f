"""A comparison in the engine itself, over trials that are played by script."""

from __future__ import annotations

from pathlib import Path

from gputune_tui.domain.trial import FailureReason, TrialState
from gputune_tui.engine.commands import Compare
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import PairFinished, TrialProgress
from gputune_tui.store.reading import read_study

from .fake_interpreter import fake_study


def open_engine(folder: Path) -> Engine:
    engine = Engine()
    for _ in engine.open(fake_study(folder)):
        pass
    return engine


def test_whole_pairs_of_an_interrupted_comparison_are_kept(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    task = engine.handle(Compare({}, {"num_workers": 1}))
    pairs = 0
    for event in task:
        pairs += isinstance(event, PairFinished)
        if pairs == 2 and isinstance(event, TrialProgress):
            break
    task.close()
    engine.close()
    assert pairs == 2
    stored = read_study(tmp_path / "study").current
    assert stored is not None
    assert [(trial.state, len(trial.launches)) for trial in stored.trials] == [(TrialState.COMPLETE, 2)] * 2


def test_without_a_whole_pair_both_are_interrupted(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    task = engine.handle(Compare({}, {"num_workers": 1}))
    for event in task:
        if isinstance(event, TrialProgress) and event.blocks:
            break
    task.close()
    trials = engine.session.trials
    engine.close()
    assert [trial.failure.reason for trial in trials if trial.failure] == [FailureReason.KILLED] * 2
