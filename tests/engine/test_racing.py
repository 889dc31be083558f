"""A race in the engine itself, over trials that are played by script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gputune_tui.domain.trial import Trial, TrialState
from gputune_tui.engine.commands import Search
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import (
    Confirming,
    Dropped,
    EngineEvent,
    RaceFinished,
    RoundFinished,
    SearchFinished,
    TrialStarted,
)
from gputune_tui.ranking.document import study_document
from gputune_tui.store.reading import read_study

from .driving import of_kind
from .fake_interpreter import fake_study

SPACE = "num_workers=0,1,3,4"


def raced(
    folder: Path,
    command: Search | None = None,
    until: Callable[[EngineEvent], object] | None = None,
    slow_0: float = 1.0,
) -> list[EngineEvent]:
    """The events of a race with 3 and 4 workers slow; it is interrupted at the event of which `until` is true."""
    engine = Engine()
    for _ in engine.open(replace(fake_study(folder, slow_0=slow_0, slow_3=2, slow_4=3), share=True)):
        pass
    events = []
    task = engine.handle(command or Search(SPACE, race=True))
    for event in task:
        if event is not None:
            events.append(event)
            if until is not None and until(event):
                break
    task.close()
    session = engine.session
    study_document(str(session.path), session.opened.identity, session.opened.budget, session.board())
    engine.close()
    return events


def stored(folder: Path) -> dict[int, Trial]:
    """The trials by their number of workers."""
    current = read_study(folder / "study").current
    assert current is not None
    return {trial.settings.num_workers: trial for trial in current.trials if trial.state is TrialState.COMPLETE}


def rounds_of(trial: Trial) -> list[str | None]:
    """Without the race's name."""
    return [launch.round and launch.round.partition(".")[2] for launch in trial.launches]


def test_the_slow_are_dropped_and_the_others_run_in_rounds(tmp_path: Path) -> None:
    events = raced(tmp_path)
    trials = stored(tmp_path)
    dropped = {event.trial.trial_id: event.trial.standing for event in of_kind(events, Dropped)}
    assert dropped == {trials[3].id: "slower", trials[4].id: "slower"}
    assert all(event.trial.high is not None and event.trial.high < 1 for event in of_kind(events, Dropped))
    assert rounds_of(trials[3]) == rounds_of(trials[4]) == ["0"]
    [finished] = of_kind(events, RaceFinished)
    last = of_kind(events, RoundFinished)[-1]
    finals = [str(number) for number in range(1, 1 + last.rounds)]
    [confirming] = of_kind(events, Confirming)
    for workers in (0, 1):
        confirmed = [None, None] if trials[workers].id == confirming.trial_id else []
        assert rounds_of(trials[workers]) == ["0", *finals, *confirmed]
    assert {other.trial_id: other.standing for other in finished.others}.items() >= dropped.items()
    assert events[-1] == SearchFinished(None)
    order = [event.trial_id for event in of_kind(events, TrialStarted)][4:]
    assert order[:2] == order[2:4][::-1] == order[4:6], "the order alternates from round to round"


def test_the_same_race_again_runs_nothing(tmp_path: Path) -> None:
    raced(tmp_path)
    before = stored(tmp_path)
    assert of_kind(raced(tmp_path), TrialStarted) == []
    assert stored(tmp_path) == before


def test_an_interrupted_race_keeps_whole_launches_and_goes_on(tmp_path: Path) -> None:
    heard: list[EngineEvent] = []

    def in_second_round(event: EngineEvent) -> bool:
        heard.append(event)
        return bool(of_kind(heard, RoundFinished)) and isinstance(event, TrialStarted) and event.number == 2

    raced(tmp_path, until=in_second_round)
    whole = stored(tmp_path)
    assert sorted(len(trial.launches) for trial in whole.values()) == [1, 1, 2, 3]
    events = raced(tmp_path)
    assert of_kind(events, RaceFinished)
    started = of_kind(events, TrialStarted)
    assert len(started) == 2 * (of_kind(events, RoundFinished)[-1].rounds - 1) + 1, (
        "the finals that are left, and the confirmation"
    )
    first = next(trial for trial in whole.values() if len(trial.launches) == 3)
    again = stored(tmp_path)[first.settings.num_workers]
    assert rounds_of(again)[:4] == ["0", "1", "2", "2.2"], "the interrupted round is run anew under another name"


def test_trials_that_are_there_count(tmp_path: Path) -> None:
    raced(tmp_path, Search("num_workers=0,3"))
    events = raced(tmp_path)
    started = [event.settings.num_workers for event in of_kind(events, TrialStarted)]
    assert sorted(started[:2]) == [1, 4]
    assert rounds_of(stored(tmp_path)[3]) == [None]


def test_max_time_leaves_a_race_that_can_go_on(tmp_path: Path) -> None:
    events = raced(tmp_path, Search(SPACE, race=True, max_time_s=0.0))
    last = events[-1]
    assert isinstance(last, SearchFinished)
    assert last.stopped_because is not None
    assert "--max-time" in last.stopped_because
    assert not of_kind(events, RaceFinished)


def test_one_setting_alone_wins_its_race(tmp_path: Path) -> None:
    events = raced(tmp_path, Search("num_workers=1", race=True))
    assert len(of_kind(events, Confirming)) == 1
    assert rounds_of(stored(tmp_path)[1]) == ["0", None, None]


def test_a_thriftier_setting_that_was_set_aside_runs_beside_the_leader(tmp_path: Path) -> None:
    command = Search("num_workers=0,1,2,5,6", race=True)
    events = raced(tmp_path, command, slow_0=1.04)
    trials = stored(tmp_path)
    aside = [event.trial.trial_id for event in of_kind(events, Dropped) if event.trial.standing == "set aside"]
    assert aside == [trials[0].id]
    assert rounds_of(trials[0]) == ["0", "1", *(f"{trials[0].id}-{number}" for number in range(3))]
    [confirming] = of_kind(events, Confirming)
    assert confirming.trial_id == trials[1].id, "the fewest workers among those that the rounds do not separate"
    assert of_kind(raced(tmp_path, command, slow_0=1.04), TrialStarted) == []
