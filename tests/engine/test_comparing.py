"""A comparison in the engine itself, over trials that are played by script."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputune_tui.domain.trial import Block, FailureReason, TrialState
from gputune_tui.engine.commands import Compare
from gputune_tui.engine.comparing import CYCLES, LEAST_CYCLES, LOOKS, MOST_PAIRS, judged
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import Compared, EngineEvent, PairFinished, TrialProgress
from gputune_tui.errors import StoreWriteError
from gputune_tui.ranking.statistics import PairedLaunch
from gputune_tui.store.reading import read_study
from gputune_tui.store.records import Record, TrialEnded
from gputune_tui.store.writing import StudyWriter

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


def test_a_study_that_cannot_be_written_at_the_end_costs_neither_an_arm_nor_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(tmp_path)
    append = StudyWriter.append

    def full(writer: StudyWriter, record: Record) -> None:
        append(writer, record)
        if isinstance(record, TrialEnded):
            raise StoreWriteError("the disk is full")

    monkeypatch.setattr(StudyWriter, "append", full)
    told: list[EngineEvent] = []
    with pytest.raises(StoreWriteError, match="the disk is full"):
        told.extend(event for event in engine.handle(Compare({}, {"num_workers": 1})) if event is not None)
    [found] = [event for event in told if isinstance(event, Compared)]
    assert found.pairs >= LOOKS[0]
    assert [len(trial.launches) for trial in engine.session.trials] == [found.pairs] * 2
    engine.close()


def test_equal_arms_end_tied_and_their_interval_narrows_with_every_pair(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    events = list(engine.handle(Compare({}, {"num_workers": 1}, margin_fraction=0.2)))
    engine.close()
    pairs = [event for event in events if isinstance(event, PairFinished)]
    widths = [event.high - event.low for event in pairs if event.high is not None and event.low is not None]
    assert len(widths) == len(pairs) >= 2
    assert widths == sorted(widths, reverse=True)
    [result] = [event for event in events if isinstance(event, Compared)]
    assert (result.verdict, result.pairs, result.launches) == ("tied", len(pairs), 2 * len(pairs))
    assert result.margin_fraction == 0.2
    assert result.elapsed_s is not None
    assert {len(launch.blocks) for trial in (result.a, result.b) for launch in trial.launches} == {2 * CYCLES}


def test_when_the_time_is_up_a_short_first_pair_is_all(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    events = list(engine.handle(Compare({}, {"num_workers": 1}, max_time_s=1e-3)))
    engine.close()
    [result] = [event for event in events if isinstance(event, Compared)]
    assert (result.verdict, result.pairs) == ("undecided", 1)
    assert result.ratio == pytest.approx(1.0)
    assert [len(trial.launches[0].blocks) for trial in (result.a, result.b)] == [2 * LEAST_CYCLES] * 2


def test_one_pair_is_no_verdict_and_more_never_widen_what_they_agree_on() -> None:
    fast, slow = (Block(10, 1, 1.0),) * 4, (Block(10, 1, 5.0),) * 4
    pairs = [PairedLaunch(slow, fast)] * MOST_PAIRS
    ratio, said = judged(pairs[:1], 0.03)
    assert said == "undecided"
    assert ratio is not None
    assert judged(pairs[:2], 0.03)[1] == "faster"
    found = [judged(pairs[:number], 0.03)[0] for number in LOOKS]
    widths = [one.high / one.low for one in found if one is not None]
    assert widths == sorted(widths, reverse=True)
    assert len(widths) == len(LOOKS)
