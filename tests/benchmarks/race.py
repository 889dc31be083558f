"""A race against the exhaustive grid of equal precision: its time, and its winner against the grid's by `ab`.

Run: python -m tests.benchmarks.race [--launches N] [WORKLOAD...]

Equal precision: the grid launches every setting as often as the race launched its winner, each launch as long as a
trial of `tune` is. With --launches the grid makes N launches of each, and the time of the others is taken to be the
same; the line says so.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import SearchSpace
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import TrialState
from gputune_tui.engine.commands import Compare, Search, StudyConfig
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import Compared, EngineEvent, Problem
from gputune_tui.ranking.leaderboard import Row
from gputune_tui.ranking.wording import settings_text, speed_text
from gputune_tui.units import ratio_text, seconds_text

TIME_FRACTION = 0.25
LEAST_RATIO = 0.98


@dataclass(frozen=True)
class Case:
    """A workload and the space that is searched."""

    name: str
    size: str
    global_batch_size: int
    space: str


CASES = (
    Case("lm", "tiny", 16, "precision=fp32,bf16;micro_batch_size=4,8,16;activation_checkpointing=none,full"),
    Case("vision", "tiny", 8, "micro_batch_size=2,4,8;activation_checkpointing=none,full;channels_last=false,true"),
    Case("loader-bound", "tiny", 16, "num_workers=0,1,2,4;micro_batch_size=8,16"),
)


def run(task: Iterable[EngineEvent | None]) -> list[EngineEvent]:
    """Carry it out; its events."""
    return timed(task)[0]


def timed(task: Iterable[EngineEvent | None]) -> tuple[list[EngineEvent], float]:
    """Carry it out; its events, and the seconds that it took less those in which others had the device."""
    began = time.monotonic()
    events, waited_s, waits_since = list[EngineEvent](), 0.0, 0.0
    for event in task:
        if event is None:
            continue
        if waits_since:
            waited_s, waits_since = waited_s + time.monotonic() - waits_since, 0.0
        if isinstance(event, Problem):
            waits_since = time.monotonic()
        events.append(event)
    return events, time.monotonic() - began - waited_s


def opened(case: Case, folder: Path) -> Engine:
    """An engine with a new study of the case."""
    engine = Engine()
    workload = WorkloadRef(case.name, {"size": case.size})
    run(engine.open(StudyConfig(workload, "cpu", global_batch_size=case.global_batch_size, study=str(folder))))
    return engine


def best_of(engine: Engine) -> Row:
    """Rank 1."""
    best = engine.session.board().best
    assert best is not None
    return best


def grid(engine: Engine, case: Case, launches: int) -> float:
    """Every setting once, and then again in rounds; the seconds that it took."""
    session = engine.session
    grid_s = timed(engine.handle(Search(case.space)))[1]
    for _ in range(launches):
        for trial in session.trials:
            if trial.state is TrialState.COMPLETE and len(trial.launches) < launches:
                grid_s += timed(session.run_again(trial, 1))[1]
    return grid_s


def knobs(case: Case, settings: TrainSettings) -> dict[str, str | int | bool | None]:
    """What the space chose of these settings."""
    return {name: settings.as_dict()[name] for name in SearchSpace.parse(case.space).values}


def report(case: Case, given_launches: int | None) -> int:
    """Print the figures of one case; the number of misses."""
    with tempfile.TemporaryDirectory() as folder:
        engine = opened(case, Path(folder, "race"))
        race_s = timed(engine.handle(Search(case.space, race=True)))[1]
        winner, cells = best_of(engine), len(engine.session.trials)
        made = sum(len(trial.launches) for trial in engine.session.trials)
        engine.close()
        wanted = len(winner.trial.launches)
        print(
            f"{case.name}: race of {cells} settings {seconds_text(race_s)}, {made} launches, winner "
            f"{settings_text(winner.trial.settings, None)} {speed_text(winner.throughput)} from {wanted}",
            flush=True,
        )
        engine = opened(case, Path(folder, "grid"))
        launches = min(given_launches or wanted, wanted)
        grid_s = grid(engine, case, launches)
        rival = best_of(engine)
        whole_s = grid_s * wanted / launches
        how = "" if launches == wanted else f" ({seconds_text(grid_s)} for {launches} launches of each)"
        print(
            f"{case.name}: grid {seconds_text(whole_s)}{how}, winner {settings_text(rival.trial.settings, None)} "
            f"{speed_text(rival.throughput)}"
        )
        quick = race_s <= TIME_FRACTION * whole_s
        print(f"{case.name}: time {race_s / whole_s:.2f} of the grid's, at most {TIME_FRACTION}: {word(quick)}")
        good = is_as_fast(engine, case, rival.trial.settings, winner.trial.settings)
        engine.close()
    return (not quick) + (not good)


def is_as_fast(engine: Engine, case: Case, rival: TrainSettings, winner: TrainSettings) -> bool:
    """Print the race's winner (B) against the grid's (A); True where it is not clearly slower."""
    if winner == rival:
        print(f"{case.name}: the race and the grid have the same winner: {word(True)}", flush=True)
        return True
    events = run(engine.handle(Compare(knobs(case, rival), knobs(case, winner))))
    [found] = [event for event in events if isinstance(event, Compared)]
    assert found.ratio is not None
    good = found.ratio >= LEAST_RATIO or found.verdict != "slower"
    print(
        f"{case.name}: the race's winner is {ratio_text(found.ratio)} the grid's ({ratio_text(found.low)} to "
        f"{ratio_text(found.high)}), {found.verdict}; at least {LEAST_RATIO} or not separated: {word(good)}",
        flush=True,
    )
    return good


def word(passed: bool) -> str:
    """PASS or FAIL."""
    return "PASS" if passed else "FAIL"


def main() -> int:
    """The exit code is the number of misses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--launches", type=int)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD")
    given = parser.parse_args()
    cases = [case for case in CASES if not given.workloads or case.name in given.workloads]
    return sum(report(case, given.launches) for case in cases)


if __name__ == "__main__":
    sys.exit(main())
