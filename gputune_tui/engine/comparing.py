"""Compare two settings: several launches of each, their blocks taken in turn, until there is a verdict."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

from gputune_tui.domain.protocol import Finish, RunBlock
from gputune_tui.domain.space import settings_for
from gputune_tui.domain.trial import Failure, FailureReason, Launch, MemoryPeaks, Trial, largest_peaks
from gputune_tui.engine.commands import Compare
from gputune_tui.engine.events import Compared, EngineEvent, PairFinished, TrialFinished, TrialStarted
from gputune_tui.engine.node import device_memory
from gputune_tui.engine.running import Progress, Task
from gputune_tui.engine.study_session import StudySession, TrialDraft
from gputune_tui.errors import StoreWriteError
from gputune_tui.ranking.leaderboard import leaderboard
from gputune_tui.ranking.sequential import look_errors
from gputune_tui.ranking.statistics import PairedLaunch, Ratio, Verdict, verdict
from gputune_tui.ranking.statistics import compare as compare_launches
from gputune_tui.telemetry.host import host_limits
from gputune_tui.trial.supervisor import TrialRun

CONFIDENCE = 0.95
MOST_PAIRS = 20
LOOKS = tuple(range(2, MOST_PAIRS + 1))
"""Numbers of launch pairs after which a verdict may be given: one pair alone shows nothing of how launches spread."""
SPENDING_POWER = 1.0
"""How the error is spent over the looks, see `look_errors`."""
CYCLE = (0, 1, 1, 0)
"""A cycle of a pair: whose turn it is, by order of start."""
CYCLES = 5
"""Of a pair: ten blocks of each. New launches tell more than more cycles of the same, which share their offsets."""
LEAST_CYCLES = 2
"""A pair that has fewer when the time is up does not count."""
BLOCK_S = 0.15
"""Of blocks of resident launches. What a machine drifts within a cycle is the noise of the cycle, so that short blocks
tell more in the same time: on the machine of tests/benchmarks/machine.json 0.15 s are better than 0.25 s."""
PAIR_S = 60.0
"""No further cycle of a pair starts after this long, once `LEAST_CYCLES` are there."""
NOT_MEASURED = "not measured: the comparison ended before its first pair of launches was complete"
TOGETHER_SHARE = 0.9
"""Both arms stay resident when their peaks fit into this share of what is free."""


class Arm:
    """One of the two settings and its launches so far."""

    def __init__(self, name: str, draft: TrialDraft) -> None:
        self.name = name
        self.draft = draft
        self.launches: list[Launch] = []
        self.failure: Failure | None = None
        self.partial: MemoryPeaks | None = None

    @property
    def peak_bytes(self) -> int | None:
        """The largest peak seen."""
        peaks = [p for launch in self.launches if (p := launch.memory.device_peak_bytes) is not None]
        return max(peaks) if peaks else None

    @property
    def host_peak_bytes(self) -> int | None:
        """The largest host peak seen."""
        return largest_peaks([launch.memory for launch in self.launches]).host_peak_bytes


def compare(session: StudySession, command: Compare) -> Task:
    """Run pairs of launches until the verdict is faster, slower or tied, or the looks or the time are used up.

    Raises:
        UsageError: a setting contradicts the global batch.
        StoreWriteError: after everything was told, where a result is in memory alone.
    """
    opened = session.opened
    kind, batch = opened.identity.environment.device_kind, opened.identity.global_batch_size
    wanted = [settings_for(knobs, opened.baseline, batch, kind) for knobs in (command.a, command.b)]
    for settings in wanted:
        opened.check(settings)
    began = time.monotonic()
    deadline = math.inf if command.max_time_s is None else began + command.max_time_s
    arms = [Arm(name, session.begin(settings)) for name, settings in zip("AB", wanted, strict=True)]
    result: Ratio | None = None
    said: Verdict = "undecided"
    ended = False
    pairs: list[PairedLaunch] = []
    try:
        for number, arm in enumerate(arms, 1):
            yield TrialStarted(arm.draft.id, arm.draft.settings, number, 2, arm.name)
        longest_s = 0.0
        for pair in range(1, MOST_PAIRS + 1):
            pair_began = time.monotonic()
            if pairs and pair_began + longest_s > deadline:
                break
            interleaved = yield from run_pair(session, arms, pair, deadline)
            if any(len(arm.launches) < pair for arm in arms):
                break
            pairs.append(PairedLaunch(arms[0].launches[-1].blocks, arms[1].launches[-1].blocks, interleaved))
            longest_s = max(longest_s, time.monotonic() - pair_began)
            result, said = judged(pairs, command.margin_fraction)
            yield PairFinished(pair, *_figures(result), said)
            if said != "undecided":
                break
        ended = True
    finally:
        # Whole pairs stay what they are, results of two settings, whatever ends the comparison.
        trials, unwritten = _end_both(session, arms, NOT_MEASURED if ended else "interrupted")
        if unwritten is not None and not ended:
            raise unwritten
    for number, trial in enumerate(trials, 1):
        yield TrialFinished(trial, number, 2, None)
    yield Compared(
        trials[0],
        trials[1],
        *_figures(result),
        CONFIDENCE,
        said,
        launches=sum(len(arm.launches) for arm in arms),
        pairs=len(pairs),
        flags=comparison_flags(session, trials),
        margin_fraction=command.margin_fraction,
        elapsed_s=time.monotonic() - began,
    )
    if unwritten is not None:
        raise unwritten


def judged(pairs: Sequence[PairedLaunch], margin_fraction: float) -> tuple[Ratio | None, Verdict]:
    """B against A so far, and the verdict where it may be given now."""
    ratio = shared_ratio(pairs)
    return ratio, verdict(ratio, margin_fraction) if len(pairs) in LOOKS else "undecided"


def shared_ratio(pairs: Sequence[PairedLaunch]) -> Ratio | None:
    """The ratio with an interval that holds the truth after all numbers of pairs together with 95 %."""
    errors = look_errors(LOOKS, MOST_PAIRS, 1 - CONFIDENCE, SPENDING_POWER)
    look = next((number for number, at in enumerate(LOOKS) if at >= len(pairs)), -1)
    found = compare_launches(pairs, 1 - errors[look])
    return None if found is None else Ratio(found.value, found.low, found.high, CONFIDENCE)


def run_pair(
    session: StudySession, arms: list[Arm], pair: int, deadline: float = math.inf
) -> Generator[EngineEvent | None, None, bool]:
    """One launch of each arm. The order of starting alternates from pair to pair.

    After `deadline` (of `time.monotonic`) it goes on only until it has `LEAST_CYCLES`.

    Returns:
        Whether both were resident and their blocks interleaved.
    """
    order = arms if pair % 2 else arms[::-1]
    yield from session.take_device()
    try:
        resident = fit_together(session, arms)
        if resident:
            yield from _resident(session, order, pair, deadline)
        else:
            for arm in order:
                yield from _alone(session, arm, pair, deadline)
                if arm.failure is not None:
                    break
    finally:
        session.place.release()
    return resident


def fit_together(session: StudySession, arms: list[Arm]) -> bool:
    """True when both arms may be resident at once: their peaks, where measured, else their budgets."""
    free = device_memory(session.opened.device, host_limits())[1]
    budget = session.opened.budget.device_bytes
    wanted = sum(arm.peak_bytes or budget for arm in arms)
    host = session.opened.budget.host_bytes
    if host is not None and sum(arm.host_peak_bytes or 0 for arm in arms) > host:
        return False
    return free is not None and wanted <= free * TOGETHER_SHARE


def _start(session: StudySession, arm: Arm, pair: int, block_s: float) -> TrialRun:
    directory: Path = arm.draft.directory / f"launch{pair}"
    job = session.opened.job(arm.draft.settings, session.fixed_overhead_bytes, paced=True)
    plan = replace(job.plan, block_s=block_s, breakdown_steps=job.plan.breakdown_steps if pair == 1 else 0)
    job = replace(job, plan=plan)
    is_command = bool(job.workload.command)
    return TrialRun(
        session.launcher.launch(job, directory), session.opened.limits, is_command, watch=session.place.watch()
    )


def _resident(
    session: StudySession, order: list[Arm], pair: int, deadline: float
) -> Generator[EngineEvent | None, None, None]:
    """Both arms warmed up and waiting; blocks are taken A B B A."""
    runs: list[TrialRun] = []
    try:
        for arm in order:
            runs.append(_start(session, arm, pair, BLOCK_S))
            yield from _until_ready(arm, runs[-1])
        until = min(deadline, time.monotonic() + PAIR_S)
        if all(not run.finished for run in runs):
            for cycle in range(CYCLES):
                if cycle >= LEAST_CYCLES and time.monotonic() > until:
                    break
                for index in CYCLE:
                    runs[index].order(RunBlock())
                    yield from _until_ready(order[index], runs[index], blocks=len(runs[index].seen.blocks) + 1)
        for arm, run in zip(order, runs, strict=True):
            run.order(Finish())  # one after the other: the instrumented steps that follow must not meet
            yield from _finish(session, arm, run)
    finally:
        for run in runs:
            run.close()


def _alone(session: StudySession, arm: Arm, pair: int, deadline: float) -> Generator[EngineEvent | None, None, None]:
    """One arm after the other, where both do not fit: the launches alternate instead of the blocks."""
    run = _start(session, arm, pair, session.opened.config.plan.block_s)
    try:
        yield from _until_ready(arm, run)
        until = min(deadline, time.monotonic() + PAIR_S / 2)
        for number in range(2 * CYCLES):
            if number >= 2 * LEAST_CYCLES and time.monotonic() > until:
                break
            run.order(RunBlock())
            yield from _until_ready(arm, run, blocks=len(run.seen.blocks) + 1)
        run.order(Finish())
        yield from _finish(session, arm, run)
    finally:
        run.close()


def _until_ready(arm: Arm, run: TrialRun, blocks: int = 0) -> Generator[EngineEvent | None, None, None]:
    progress = Progress(arm.draft.id)
    while not run.finished and not (run.seen.phase == "ready" and len(run.seen.blocks) >= blocks):
        yield from progress.of(run.poll())
        yield None


def _finish(session: StudySession, arm: Arm, run: TrialRun) -> Generator[EngineEvent | None, None, None]:
    while not run.finished:
        run.poll()
        yield None
    session.take_overhead(run)
    if run.failure is not None:
        arm.failure, arm.partial = run.failure, run.seen.memory
    elif len(run.seen.blocks) >= 2 * LEAST_CYCLES:
        # Fewer where the other arm failed meanwhile.
        arm.launches.append(run.launch())


def _end_both(
    session: StudySession, arms: Sequence[Arm], unmeasured: str
) -> tuple[list[Trial], StoreWriteError | None]:
    """The trials of both arms, and what kept them from being written: for one of them the other is not left out."""
    unwritten: StoreWriteError | None = None
    for arm in arms:
        try:
            _end(session, arm, unmeasured)
        except StoreWriteError as error:
            unwritten = error
    known = {trial.id: trial for trial in session.trials}
    return [known[arm.draft.id] for arm in arms], unwritten


def _end(session: StudySession, arm: Arm, unmeasured: str) -> None:
    if not arm.launches and arm.failure is None:
        arm.failure = Failure(FailureReason.KILLED, unmeasured)
    session.end(arm.draft, () if arm.failure else arm.launches, arm.failure, arm.partial)


def _figures(result: Ratio | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if result is None else (result.value, result.low, result.high)


def comparison_flags(session: StudySession, trials: list[Trial]) -> tuple[str, ...]:
    """Remarks of either arm, failures and the guard's word on B against A."""
    flags: list[str] = []
    for name, trial in zip("AB", trials, strict=True):
        if trial.failure is not None:
            flags.append(f"{name} failed: {trial.failure.reason.value}: {trial.failure.message}")
    rows = leaderboard(trials, session.opened.budget, trials[0].settings).rows
    for name, trial in zip("AB", trials, strict=True):
        flags += [f"{name}: {flag}" for row in rows if row.trial is trial for flag in row.flags]
    flags += [
        f"{name}: {row.disqualified}"
        for row in rows
        for name, trial in zip("AB", trials, strict=True)
        if row.trial is trial and row.disqualified
    ]
    return tuple(flags)
