"""The best of a search is launched again before it is called the best, over trials that are played by script."""

from __future__ import annotations

from pathlib import Path

from gputune_tui.domain.trial import Trial
from gputune_tui.engine.commands import Search
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import Confirming, EngineEvent, SearchFinished, TrialFinished, TrialStarted
from gputune_tui.store.reading import read_study

from .driving import of_kind
from .fake_interpreter import fake_study

SPACE = "num_workers=0,1"


def searched(folder: Path, max_time_s: float | None = None) -> list[EngineEvent]:
    engine = Engine()
    for _ in engine.open(fake_study(folder)):
        pass
    events = [event for event in engine.handle(Search(SPACE, max_time_s=max_time_s)) if event is not None]
    engine.close()
    return events


def stored(folder: Path) -> tuple[Trial, ...]:
    current = read_study(folder / "study").current
    assert current is not None
    return current.trials


def test_the_best_has_three_launches_in_the_end_and_no_trial_is_new(tmp_path: Path) -> None:
    events = searched(tmp_path)
    [confirming] = of_kind(events, Confirming)
    assert confirming.launches == 2
    assert of_kind(events, TrialStarted)[-1].trial_id == confirming.trial_id
    launches = {trial.id: len(trial.launches) for trial in stored(tmp_path)}
    assert launches == {1: 1, 2: 1, confirming.trial_id: 3}
    again = of_kind(events, TrialFinished)[-1].trial
    assert again in stored(tmp_path)
    assert isinstance(events[-1], SearchFinished)
    assert (tmp_path / "study" / "trials" / str(confirming.trial_id) / "launch3" / "log.txt").is_file()


def test_the_same_search_again_runs_nothing(tmp_path: Path) -> None:
    searched(tmp_path)
    before = stored(tmp_path)
    assert of_kind(searched(tmp_path), TrialStarted) == []
    assert stored(tmp_path) == before


def test_interrupted_confirming_leaves_the_trial_as_it_was(tmp_path: Path) -> None:
    engine = Engine()
    for _ in engine.open(fake_study(tmp_path)):
        pass
    task = engine.handle(Search(SPACE))
    for event in task:
        if isinstance(event, Confirming):
            break
    next(task)
    task.close()
    engine.close()
    assert [len(trial.launches) for trial in stored(tmp_path)] == [1, 1]
    assert of_kind(searched(tmp_path), Confirming)
    assert sorted(len(trial.launches) for trial in stored(tmp_path)) == [1, 3]
