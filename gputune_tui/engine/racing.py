"""Run a race: short launches of all cells, rounds of the finalists, and a longer run of the winner."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Generator, Iterable
from dataclasses import replace

from gputune_tui.domain.job import MeasurePlan
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import Cells
from gputune_tui.domain.trial import Launch, Trial, TrialState
from gputune_tui.engine.commands import Search
from gputune_tui.engine.events import Contender, Dropped, EngineEvent, RaceFinished, RoundFinished, SearchFinished
from gputune_tui.engine.running import Task
from gputune_tui.engine.searching import confirm_best, plan_search, too_small_for_anything
from gputune_tui.engine.study_session import Order, StudySession
from gputune_tui.ranking.rounds import latest_race, race_of, round_of
from gputune_tui.search.race import Place, Race, RaceRules, Wanted
from gputune_tui.search.random import RandomSampler
from gputune_tui.search.stop import stop_reason

SHORT_BLOCK_FRACTION = 0.4
"""Blocks of a race's launch are this much shorter. Steps in a row are noisy together, so that shorter blocks cost
little precision (trial_engine.md section 4), and launches differ more than blocks do."""
SHORT_MIN_BLOCKS = 3
SHORT_TIME_FRACTION = 0.25
"""Of the limits on warm-up and timed work: a cell that is very slow shall not hold up the race."""
FIRST_HEAT = "0"
"""As `round_of` tells it."""
WINNER_LAUNCHES = 2
"""Of full length: the winner has its short ones besides."""


def race(session: StudySession, command: Search) -> Task:
    """Race the cells of the space. What the study holds of this race, or of a cell at all, is not run again.

    Raises:
        UsageError: the space cannot be read or holds no setting.
    """
    cells, _ = yield from plan_search(session, command)
    yield from _Runner(session, command, cells).run()


def short_plan(plan: MeasurePlan, wanted: Wanted) -> MeasurePlan:
    """How long a launch of the race measures; in the finals without the breakdown, which the heats have told."""
    return replace(
        plan,
        block_s=plan.block_s * SHORT_BLOCK_FRACTION,
        min_blocks=min(plan.min_blocks, SHORT_MIN_BLOCKS),
        extra_blocks=plan.extra_blocks // 2,
        max_timed_s=plan.max_timed_s * SHORT_TIME_FRACTION,
        max_warmup_s=plan.max_warmup_s * SHORT_TIME_FRACTION,
        breakdown_steps=0 if wanted.is_final else plan.breakdown_steps,
        enough_below_samples_per_s=wanted.enough_below_samples_per_s,
    )


def space_of(race: str) -> str:
    """The part of a race's name that tells the settings it was held among."""
    return race.rpartition("-")[2]


def new_race(order: Iterable[TrainSettings]) -> str:
    """A name for a race among these settings that is greater than those of all earlier ones."""
    settings = "\n".join(sorted(settings.text() for settings in order))
    return f"{int(time.time()):010x}-{hashlib.blake2b(settings.encode(), digest_size=4).hexdigest()}"


class _Runner:
    """One race of one command.

    The order of the first heat follows from the seed and everything else from the launches, so that a race goes on by
    telling it again what is stored.
    """

    def __init__(self, session: StudySession, command: Search, cells: Cells) -> None:
        self._session = session
        self._command = command
        self._cells = cells
        self._began = time.monotonic()
        order = list(_asked(RandomSampler(cells, session.opened.config.seed)))
        self._race = Race(order, RaceRules(margin_fraction=command.margin_fraction))
        name = new_race(order)
        launches = [launch for trial in session.trials for launch in trial.launches]
        # Rounds of a race among other settings cannot be gone on with: those beside whom they ran are not in this one.
        before = latest_race(one for one in launches if space_of(race_of(one) or "") == space_of(name))
        self._name = before or name
        self._round = ""
        """Name of the present round."""
        self._called_in: int | None = None
        """The trial that was called in, and the number of its first round."""
        self._first_round = 0
        self._final_rounds = 0

    def run(self) -> Task:
        """Heats, finals, and the winner's confirmation."""
        because = yield from self._run_launches()
        while because is None and (best := self._session.board().best) is not None:
            # The thriftiest of those that are not separated is best: it must have run beside the leader.
            if not self._race.call_in(best.trial.settings) or (wanted := self._race.ask()) is None:
                break
            self._called_in, self._first_round = best.trial.id, wanted.round
            because = yield from self._run_launches()
        if because is None:
            yield from self._tell_end()
            if self._is_late():
                because = "--max-time is up before the winner was confirmed; the same command confirms it"
            else:
                yield from confirm_best(self._session, self._cells, WINNER_LAUNCHES)
        yield SearchFinished(because)

    def _run_launches(self) -> Generator[EngineEvent | None, None, str | None]:
        """Until the race asks for nothing more; returns why it stopped before."""
        while (wanted := self._race.ask()) is not None:
            if wanted.place == 1:
                self._round = self._name_of_round(wanted)
            launches = self._stored(wanted)
            ran = launches is None
            if launches is None:
                if self._is_late():
                    return "--max-time is up; the race is not decided, and the same command goes on with it"
                launches = yield from self._launch(wanted)
            dropped = self._race.tell(launches)
            because = self._hopeless()
            if because is not None:
                return because
            if ran:
                yield from self._tell_dropped(dropped)
            if wanted.is_final and wanted.place == wanted.total:
                self._final_rounds += 1
                if ran:
                    yield from self._tell_round()
        return None

    def _is_late(self) -> bool:
        limit = self._command.max_time_s
        return limit is not None and time.monotonic() - self._began > limit

    def _hopeless(self) -> str | None:
        baseline = self._session.finished(self._cells.reference)
        told = stop_reason([baseline], self._cells.reference) if baseline else None
        return told or too_small_for_anything(self._session)

    def _name_of_round(self, wanted: Wanted) -> str:
        """That of a stored round that is whole, else one that no launch has.

        Of a round that was interrupted nothing counts: its launches would be compared with much later ones. In the
        first heat what was measured counts all the same, yet not as a pair with what is measured now.
        """
        # Rounds of a setting that was called in are counted apart: another one may be called in the next time.
        number = str(wanted.round - self._first_round)
        if self._called_in is not None:
            number = f"{self._called_in}-{number}"
        held = {launch.round for trial in self._session.trials for launch in trial.launches}
        for attempt in itertools.count(1):
            name = f"{self._name}.{number}" + (f".{attempt}" if attempt > 1 else "")
            if name not in held or self._is_whole(name):
                return name
        raise AssertionError

    def _is_whole(self, name: str) -> bool:
        return all(self._of_round(self._trial_of(settings), name) for settings in self._race.members)

    def _trial_of(self, settings: TrainSettings) -> Trial | None:
        """The trial that is in this race; one that is not, of a comparison perhaps, only where there is no other."""
        in_race = (
            trial
            for trial in reversed(self._session.trials)
            if trial.settings == settings
            and trial.state is TrialState.COMPLETE
            and any(race_of(launch) == self._name for launch in trial.launches)
        )
        return next(in_race, None) or self._session.finished(settings)

    def _stored(self, wanted: Wanted) -> list[Launch] | None:
        """What the study holds of this launch; None where it is yet to be run."""
        trial = self._trial_of(wanted.settings)
        if wanted.round > 0:
            launches = self._of_round(trial, self._round)
            return self._eligible(trial, launches) if trial and launches else None
        if trial is None:
            return None
        heat = [one for one in trial.launches if race_of(one) == self._name and round_of(one) == FIRST_HEAT]
        before = itertools.takewhile(lambda launch: race_of(launch) != self._name, trial.launches)
        return self._eligible(trial, heat[-1:] or list(before))

    @staticmethod
    def _of_round(trial: Trial | None, name: str) -> list[Launch]:
        return [launch for launch in trial.launches if launch.round == name][-1:] if trial else []

    def _launch(self, wanted: Wanted) -> Generator[EngineEvent | None, None, list[Launch]]:
        order = Order(short_plan(self._session.opened.config.plan, wanted), self._round)
        known = self._trial_of(wanted.settings)
        trial: Trial | None
        if known is None or known.state is not TrialState.COMPLETE:
            trial = yield from self._session.run(wanted.settings, wanted.place, wanted.total, order=order)
        else:
            trial = yield from self._session.run_again(known, 1, True, wanted.place, wanted.total, order)
        return [] if trial is None else self._eligible(trial, list(trial.launches[-1:]))

    def _eligible(self, trial: Trial, launches: list[Launch]) -> list[Launch]:
        """The launches, unless the trial cannot win: failed, over the budget, or disqualified."""
        row = self._session.board().row(trial.id)
        is_eligible = row is not None and trial.state is TrialState.COMPLETE and row.feasible and not row.disqualified
        return launches if is_eligible else []

    def _tell_dropped(self, dropped: list[Place]) -> Task:
        leader = self._race.leader
        for place in dropped:
            if (contender := self._contender(place)) is not None:
                yield Dropped(contender, self._id_of(leader))

    def _tell_round(self) -> Task:
        leader_id, others = self._standing()
        if leader_id is not None:
            running = tuple(other for other in others if other.standing in ("tied", "undecided"))
            yield RoundFinished(self._final_rounds, leader_id, running)

    def _tell_end(self) -> Task:
        leader_id, others = self._standing()
        if leader_id is not None:
            yield RaceFinished(leader_id, others, self._command.margin_fraction, time.monotonic() - self._began)

    def _standing(self) -> tuple[int | None, tuple[Contender, ...]]:
        places = [place for place in self._race.standing() if place.standing not in ("leads", "failed")]
        others = [contender for place in places if (contender := self._contender(place)) is not None]
        return self._id_of(self._race.leader), tuple(others)

    def _contender(self, place: Place) -> Contender | None:
        trial_id, ratio = self._id_of(place.settings), place.ratio
        if trial_id is None:
            return None
        figures = (ratio.value, ratio.low, ratio.high) if ratio else (None, None, None)
        return Contender(trial_id, place.standing, *figures)

    def _id_of(self, settings: TrainSettings | None) -> int | None:
        trial = self._trial_of(settings) if settings is not None else None
        return trial.id if trial else None


def _asked(sampler: RandomSampler) -> Iterable[TrainSettings]:
    while (settings := sampler.ask()) is not None:
        yield settings
