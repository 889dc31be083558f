"""A race in the engine itself, over trials that are played by script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gputune_tui.domain.trial import Trial, TrialState
from gputune_tui.engine.commands import Command, MeasureAgain, RunSettings, Search
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
from gputune_tui.errors import UsageError
from gputune_tui.ranking.document import study_document
from gputune_tui.store.reading import read_study

from .driving import of_kind
from .fake_interpreter import fake_study

SPACE = "num_workers=0,1,3,4"


def raced(
    folder: Path,
    command: Command | None = None,
    until: Callable[[EngineEvent], object] | None = None,
    slow_0: float = 1.0,
    **options: Any,
) -> list[EngineEvent]:
    """The events of a race with 3 and 4 workers slow; it is interrupted at the event of which `until` is true."""
    engine = Engine()
    for _ in engine.open(replace(fake_study(folder, slow_0=slow_0, slow_3=2, slow_4=3, **options), share=True)):
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
    events = raced(tmp_path, command, slow_0=1.06)
    trials = stored(tmp_path)
    aside = [event.trial.trial_id for event in of_kind(events, Dropped) if event.trial.standing == "set aside"]
    assert aside == [trials[0].id]
    assert rounds_of(trials[0]) == ["0", "1", *(f"{trials[0].id}-{number}" for number in range(3))]
    [confirming] = of_kind(events, Confirming)
    assert confirming.trial_id == trials[1].id, "the fewest workers among those that the rounds do not separate"
    assert of_kind(raced(tmp_path, command, slow_0=1.06), TrialStarted) == []


def test_who_fails_in_a_round_is_out_and_the_race_is_over_when_it_is_over(tmp_path: Path) -> None:
    crash, heard = tmp_path / "crash", list[EngineEvent]()

    def fail_in_second_round(event: EngineEvent) -> None:
        heard.append(event)
        if len(of_kind(heard, RoundFinished)) == 1:
            crash.touch()

    raced(tmp_path, until=fail_in_second_round, crash_1=crash)
    crash.unlink()
    trials = stored(tmp_path)
    assert rounds_of(trials[1]) == ["0", "1", "2"]
    assert trials[1].launches[-1].blocks == ()
    assert trials[1].launches[-1].notes == ("a launch of its race failed: it crashed",)
    assert rounds_of(trials[0])[:3] == ["0", "1", "2"]
    events = raced(tmp_path, crash_1=crash)
    assert of_kind(events, TrialStarted) == [], "it does not come in again either"
    assert of_kind(events, RaceFinished)
    assert stored(tmp_path) == trials


def test_another_trial_of_a_finalist_does_not_undo_its_rounds(tmp_path: Path) -> None:
    raced(tmp_path)
    before = stored(tmp_path)
    for workers in (0, 1, 3):
        raced(tmp_path, RunSettings(before[workers].settings))
    assert stored(tmp_path) != before
    assert of_kind(raced(tmp_path), RoundFinished) == []


def test_a_larger_space_is_another_race(tmp_path: Path) -> None:
    raced(tmp_path, Search("num_workers=0,1", race=True))
    small = stored(tmp_path)
    events = raced(tmp_path)
    trials = stored(tmp_path)
    assert len(of_kind(events, TrialStarted)[:2]) == 2
    assert sorted(event.settings.num_workers for event in of_kind(events, TrialStarted)[:2]) == [3, 4]
    new = [launch.round for launch in trials[0].launches[len(small[0].launches) :] if launch.round is not None]
    assert new[0] is not None
    assert not {launch.round for launch in small[0].launches} & set(new), "rounds of the two races are not one"
    assert [name.partition(".")[2] for name in new] == [str(number + 1) for number in range(len(new))]
    assert of_kind(raced(tmp_path), TrialStarted) == []


def test_launches_of_a_first_heat_that_was_interrupted_are_no_pairs_with_later_ones(tmp_path: Path) -> None:
    raced(tmp_path, until=lambda event: isinstance(event, TrialStarted) and event.number == 3)
    early = stored(tmp_path)
    assert [rounds_of(trial) for trial in early.values()] == [["0"], ["0"]]
    events = raced(tmp_path)
    trials = stored(tmp_path)
    assert {rounds_of(trials[workers])[0] for workers in early} == {"0"}
    assert {rounds_of(trials[workers])[0] for workers in trials.keys() - early.keys()} == {"0.2"}
    assert of_kind(events, RaceFinished)
    assert of_kind(raced(tmp_path), TrialStarted) == []


def test_a_setting_that_was_dropped_runs_beside_the_leader_before_it_may_win(tmp_path: Path) -> None:
    """Where launches of the study are seen to stray, its board separates less than a race's heat does."""
    slow = tmp_path / "slow"

    def stray(event: EngineEvent) -> None:
        if isinstance(event, Confirming):
            slow.write_text("4")

    raced(tmp_path, Search("num_workers=7"), until=stray, slow_0=2.5, slow_file=slow)
    slow.unlink()
    command = Search("num_workers=0,1", race=True)
    events = raced(tmp_path, command, slow_0=2.5, slow_file=slow)
    trials = stored(tmp_path)
    [dropped, *_] = of_kind(events, Dropped)
    assert (dropped.trial.trial_id, dropped.trial.standing) == (trials[0].id, "slower")
    assert rounds_of(trials[0]) == ["0", *(f"{trials[0].id}-{number}" for number in range(3))]
    assert {event.trial_id for event in of_kind(events, Confirming)} == {trials[1].id}
    assert of_kind(raced(tmp_path, command, slow_0=2.5, slow_file=slow), TrialStarted) == []


def test_measuring_again_leaves_the_rounds_of_a_race(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    events = raced(tmp_path, slow_file=slow)
    before = stored(tmp_path)
    [confirming] = of_kind(events, Confirming)
    [winner] = [trial for trial in before.values() if trial.id == confirming.trial_id]
    slow.write_text("1.01")
    again = raced(tmp_path, MeasureAgain((winner.id,)), slow_file=slow)
    assert [event.trial_id for event in of_kind(again, TrialStarted)] == [winner.id]
    after = stored(tmp_path)[winner.settings.num_workers]
    assert rounds_of(after) == rounds_of(winner)
    kept = [old.blocks == new.blocks for old, new in zip(winner.launches, after.launches, strict=True)]
    assert kept == [launch.round is not None for launch in winner.launches]
    assert of_kind(raced(tmp_path, slow_file=slow), TrialStarted) == []
    with pytest.raises(UsageError, match=f"trial {before[3].id} was measured in the rounds of a race alone"):
        raced(tmp_path, MeasureAgain((before[3].id,)), slow_file=slow)
