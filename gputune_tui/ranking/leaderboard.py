"""Rank the trials of a study: who fits, who computes the right thing, who is fastest, and who is tied with them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import Launch, MemoryPeaks, StepBreakdown, Trial, TrialState
from gputune_tui.ranking.data_notes import data_notes
from gputune_tui.ranking.feasibility import is_feasible
from gputune_tui.ranking.guard import compare_guard
from gputune_tui.ranking.memory_notes import memory_notes
from gputune_tui.ranking.rounds import latest_race, race_of, ratio_between, round_of, shared_rounds
from gputune_tui.ranking.spreads import StudySpread
from gputune_tui.ranking.statistics import (
    Ratio,
    StepTime,
    Throughput,
    step_time,
    throughput,
)
from gputune_tui.ranking.taints import Taint, taints

_STATE_ORDER = (TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED, TrialState.RUNNING, TrialState.WAITING)


@dataclass(frozen=True)
class Row:
    """One trial and what it is worth."""

    trial: Trial
    throughput: Throughput | None
    step_time: StepTime | None
    breakdown: StepBreakdown | None
    """Of the launch with the median throughput."""
    memory: MemoryPeaks | None
    feasible: bool | None
    disqualified: str | None
    """Why a trial that ended well has no rank, apart from the budget."""
    guard: str
    """Verdict of the guard: "passed", "baseline", "not checked", or the reason to disqualify."""
    rank: int | None
    tied_with_best: bool
    """True where the trial has a rank and is not separated from the fastest, the fastest itself included."""
    flags: tuple[str, ...]
    ratio_to_reference: float | None
    """Throughput over that of the reference setting."""
    worth_measuring_again: bool = False
    """Something disturbed its launches outside of races that may be over by now."""


@dataclass(frozen=True)
class Leaderboard:
    """Rows: by rank, then the other COMPLETE trials, then FAIL, PRUNED, RUNNING and WAITING by id."""

    rows: tuple[Row, ...]
    best: Row | None
    """Rank 1."""

    def row(self, trial_id: int) -> Row | None:
        """The row of that trial."""
        return next((row for row in self.rows if row.trial.id == trial_id), None)


def leaderboard(
    trials: Iterable[Trial], budget: MemoryBudget, reference: TrainSettings | None, confidence: float = 0.95
) -> Leaderboard:
    """Rank trials of distinct ids; the order in which they come makes no difference.

    Args:
        trials: all trials of one generation.
        budget: feasibility is decided for this one, whatever the trials ran under.
        reference: the setting that guard and ratios compare with; None compares with nothing.
        confidence: of the intervals and of the ties.
    """
    ordered = sorted(trials, key=lambda trial: trial.id)
    baseline = next((t for t in ordered if t.settings == reference and t.state is TrialState.COMPLETE), None)
    spread = StudySpread(ordered)
    base = throughput(baseline.launches) if baseline else None
    rows = _with_ranks([_row(trial, budget, baseline, base, confidence, spread) for trial in ordered], spread)
    rows.sort(key=_row_order)
    return Leaderboard(tuple(rows), next((row for row in rows if row.rank == 1), None))


def _row(
    trial: Trial,
    budget: MemoryBudget,
    baseline: Trial | None,
    base: Throughput | None,
    confidence: float,
    spread: StudySpread,
) -> Row:
    complete = trial.state is TrialState.COMPLETE
    measured = throughput(trial.launches, confidence, spread.without(trial.id))
    guard, found = _guard_verdict(trial, baseline), taints(trial)
    disqualified = None if not complete or guard in _GUARD_PASSES else guard
    if complete and disqualified is None and measured is None:
        disqualified = "no timed block can be used: too few samples"
    return Row(
        trial=trial,
        throughput=measured,
        step_time=step_time(trial.launches),
        breakdown=_median_breakdown(trial.launches),
        memory=trial.memory,
        feasible=is_feasible(trial, budget),
        disqualified=disqualified,
        guard=guard,
        rank=None,
        tied_with_best=False,
        flags=(*_flags(trial, found), *memory_notes(trial, budget), *data_notes(trial.launches)),
        ratio_to_reference=measured.value / base.value if measured and base else None,
        worth_measuring_again=complete and any(taint.passing for taint in taints(_outside_of_races(trial))),
    )


_GUARD_PASSES = ("passed", "baseline", "not checked")


def _guard_verdict(trial: Trial, baseline: Trial | None) -> str:
    records = [launch.guard for launch in trial.launches if launch.guard is not None]
    expected = (
        next((launch.guard for launch in baseline.launches if launch.guard is not None), None) if baseline else None
    )
    if not records:
        return "not checked"
    launches = trial.launches + (baseline.launches if baseline else ())
    batchnorm = any(note.startswith("BatchNorm") for launch in launches for note in launch.notes)
    settings = baseline.settings if baseline else None
    for record in records:
        reason = compare_guard(record, expected, trial.settings, settings, batchnorm)
        if reason is not None:
            return reason
    if baseline is not None and trial.id == baseline.id:
        return "baseline"
    return "passed" if expected is not None else "not checked"


def _outside_of_races(trial: Trial) -> Trial:
    return replace(trial, launches=tuple(launch for launch in trial.launches if launch.round is None))


def _median_breakdown(launches: tuple[Launch, ...]) -> StepBreakdown | None:
    told: list[tuple[float, StepBreakdown]] = []
    for launch in launches:
        if launch.breakdown is not None:
            measured = throughput([launch])
            told.append((measured.value if measured else 0.0, launch.breakdown))
    told.sort(key=lambda pair: pair[0])
    return told[(len(told) - 1) // 2][1] if told else None


def _flags(trial: Trial, found: tuple[Taint, ...]) -> tuple[str, ...]:
    flags = list(dict.fromkeys(note for launch in trial.launches for note in launch.notes))
    flags += [taint.text for taint in found]
    skipped = sum(launch.guard.skipped_steps for launch in trial.launches if launch.guard is not None)
    if skipped:
        flags.append(f"{skipped} {'step' if skipped == 1 else 'steps'} skipped by the gradient scaler")
    retries = trial.memory.alloc_retries if trial.memory else None
    if retries:
        flags.append(f"fits, but thrashing: {retries} allocator {'retry' if retries == 1 else 'retries'}")
    return tuple(flags)


def _with_ranks(rows: list[Row], spread: StudySpread) -> list[Row]:
    eligible = [
        row
        for row in rows
        if row.trial.state is TrialState.COMPLETE and row.feasible and row.disqualified is None and row.throughput
    ]
    if not eligible:
        return rows
    others = max(1, len(eligible) - 1)
    race = latest_race(launch for row in eligible for launch in row.trial.launches)
    fastest = _fastest(eligible, race, others, spread)
    tied = [row for row in eligible if row is fastest or not _separated(row, fastest, others, spread)]
    tied_ids = {row.trial.id for row in tied}
    rest = [row for row in eligible if row.trial.id not in tied_ids]
    classes = _memory_classes(tied)
    tied.sort(
        key=lambda row: (
            classes[row.trial.id],
            row.trial.settings.num_workers,
            # Pairs made it the fastest, whatever the machine gave in the rounds that not all were in.
            row is not fastest,
            -_pace(row, race),
            row.trial.id,
        )
    )
    rest.sort(key=lambda row: (-_speed(row), *_thrift(row)))
    ranks = {row.trial.id: number for number, row in enumerate(tied + rest, start=1)}
    return [
        replace(
            row,
            rank=ranks.get(row.trial.id),
            tied_with_best=row.trial.id in tied_ids,
            flags=row.flags + (_drift_flags(row, fastest) if row in rest else ()),
        )
        for row in rows
    ]


def _fastest(eligible: list[Row], race: str | None, others: int, spread: StudySpread) -> Row:
    """The fastest of those that were raced longest; another one where it is separated from that.

    Who left a race early was measured at other times than who stayed, and by luck as often as not a little faster.
    """
    most = max(_rounds(row, race) for row in eligible)
    # A round that was broken off puts those that it had reached one ahead of the others.
    longest = min(most, max(1, most - BROKEN_OFF_ROUNDS))
    raced = [row for row in eligible if _rounds(row, race) >= longest]
    fastest = min(raced, key=lambda row: (-_pace(row, race), *_thrift(row)))
    if not most:
        return fastest
    for row in sorted(eligible, key=lambda row: (row not in raced, -_pace(row, race), row.trial.id)):
        ratio = _ratio(fastest, row, others, spread)
        # Of those that ran in as many rounds the pairs say it, which leave out what others disturbed.
        if ratio is not None and (ratio.low > 1 or (row in raced and ratio.value > 1)):
            fastest = row
    return fastest


BROKEN_OFF_ROUNDS = 1
"""A race is broken off in one round at most: whoever goes on with it runs that round anew."""


def _rounds(row: Row, race: str | None) -> int:
    """Rounds of that race that the row was in, each once, however often it was begun anew."""
    return len(set(map(round_of, _launches_in(row, race))))


def _pace(row: Row, race: str | None) -> float:
    """Throughput over its rounds of that race, where it has any: launches that ran beside those of others."""
    measured = throughput(_launches_in(row, race))
    return measured.value if measured else _speed(row)


def _launches_in(row: Row, race: str | None) -> list[Launch]:
    return [launch for launch in row.trial.launches if launch.round and race_of(launch) == race]


def _ratio(fastest: Row, row: Row, others: int, spread: StudySpread) -> Ratio | None:
    """The row over the fastest, from the rounds that both were in if there are any; all `others` share the error."""
    confidence = fastest.throughput.confidence if fastest.throughput else 0.95
    seen = spread.without(fastest.trial.id, row.trial.id)
    return ratio_between(fastest.trial.launches, row.trial.launches, 1 - (1 - confidence) / others, seen)


def _separated(row: Row, fastest: Row, others: int, spread: StudySpread) -> bool:
    ratio = _ratio(fastest, row, others, spread)
    return ratio is None or ratio.low > 1 or ratio.high < 1


def _drift_flags(row: Row, fastest: Row) -> tuple[str, ...]:
    """Why a row with more samples/s than the fastest is behind it."""
    if _speed(row) <= _speed(fastest) or not shared_rounds(fastest.trial.launches, row.trial.launches):
        return ()
    return (f"slower than trial {fastest.trial.id} side by side: the machine was faster when this one was measured",)


def _speed(row: Row) -> float:
    """Throughput as a number to sort by; unknown comes last."""
    return row.throughput.value if row.throughput else -math.inf


def _thrift(row: Row) -> tuple[float, int, int]:
    """Memory, then workers, then id: what is better at equal speed."""
    peak = row.memory.device_peak_bytes if row.memory else None
    return (math.inf if peak is None else peak, row.trial.settings.num_workers, row.trial.id)


SAME_MEMORY_FRACTION = 0.02
"""Peaks this close are one and the same: two launches of a setting differ by some MiB (lm tiny on a CPU: 1 %)."""


def _memory_classes(rows: list[Row]) -> dict[int, int]:
    """By trial id the class of its peak, ascending; a class begins where a peak is clearly above the class's first."""
    classes: dict[int, int] = {}
    first, number = 0.0, 0
    for peak, _workers, trial_id in sorted(map(_thrift, rows)):
        if peak > first * (1 + SAME_MEMORY_FRACTION):
            first, number = peak, number + 1
        classes[trial_id] = number
    return classes


def _row_order(row: Row) -> tuple[float, int, float, int]:
    """By rank; without one by state, COMPLETE trials by throughput and the others by id."""
    complete = row.trial.state is TrialState.COMPLETE
    return (
        math.inf if row.rank is None else row.rank,
        _STATE_ORDER.index(row.trial.state),
        -_speed(row) if complete else 0.0,
        row.trial.id,
    )
