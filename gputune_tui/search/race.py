"""Race: every cell once, what is clearly slower drops out, the fastest go on in rounds until separated or tied."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import Launch
from gputune_tui.ranking.estimates import was_disturbed
from gputune_tui.ranking.rounds import ratio_between
from gputune_tui.ranking.statistics import Ratio, paired_ratio, throughput, unpaired_ratio, verdict

SPENDING_POWER = 1.5
"""Above 1 most of the finals' error is kept for the later looks, where it decides more."""

Fate = Literal["slower", "set aside", "failed"]
Standing = Literal["leads", "tied", "undecided", "slower", "set aside", "failed"]


@dataclass(frozen=True)
class RaceRules:
    """How a race decides."""

    margin_fraction: float = 0.03
    """Two settings are tied where the whole interval of their ratio lies within it."""
    error_rate: float = 0.05
    """Probability that the truly fastest setting is dropped as slower: at most half of it in the heats and half in
    the finals, shared among all comparisons and looks of each (Bonferroni). Only one side of an interval drops."""
    heats: int = 2
    """Every setting runs in the first; those that are left after it run in the next one while too many are left."""
    finalists: int = 4
    looks: tuple[int, ...] = (3, 5, 8)
    """Numbers of rounds of the finals after which a finalist may be dropped or called tied."""
    called_in: int = 3
    """At most so many settings that were set aside or dropped are called into the finals afterwards."""


@dataclass(frozen=True)
class Wanted:
    """The next launch of a race."""

    settings: TrainSettings
    round: int
    """0-based; the heats come first."""
    place: int
    """1-based, within the round."""
    total: int
    """Launches of this round."""
    is_final: bool
    enough_below_samples_per_s: float | None
    """A launch that is slower in every block is certain to be dropped, so that few blocks will do."""


@dataclass(frozen=True)
class Place:
    """How a setting stands against the leader."""

    settings: TrainSettings
    standing: Standing
    ratio: Ratio | None
    """Of the setting over the leader at the race's confidence; None of the leader, and where nothing compares them."""


@dataclass
class _Entrant:
    settings: TrainSettings
    launches: list[Launch] = field(default_factory=list)
    heats: int = 0
    finals: list[Launch] = field(default_factory=list)
    """One of each round of the finals since it came in."""
    first_final: int = 0
    """Index of that round among those that the leader was in."""
    last_look: int | None = None
    """Rounds of the finals after which it stays undecided; None is the last look of the rules."""
    fate: Fate | None = None

    @property
    def speed(self) -> float:
        """Samples per second over the launches, the disturbed ones only where there is no other; 0 where unknown."""
        measured = throughput([launch for launch in self.launches if not was_disturbed(launch)] or self.launches)
        return measured.value if measured else 0.0


class Race:
    """Ask for the next launch, tell what came of it; it is over when nothing more is asked for."""

    def __init__(self, order: Sequence[TrainSettings], rules: RaceRules | None = None) -> None:
        """`order`: distinct settings as the first heat runs them."""
        self.rules = rules or RaceRules()
        self._entrants = {settings: _Entrant(settings) for settings in order}
        self._order = tuple(order)
        self.members = self._order
        """Who runs in the present round, in this order."""
        self._told = 0
        self._round = 0
        self._in_finals = False
        self._called_in = set[TrainSettings]()
        self._comparisons = max(1, len(order) - 1)
        self._over = not order

    def ask(self) -> Wanted | None:
        """The next launch; the same one until it is told. None when the race is over."""
        if self._over:
            return None
        return Wanted(
            self.members[self._told],
            self._round,
            self._told + 1,
            len(self.members),
            self._in_finals,
            None if self._in_finals else self._hopeless_below(),
        )

    def tell(self, launches: Sequence[Launch]) -> list[Place]:
        """What came of the launch that was asked for; nothing where it failed, does not fit or is disqualified.

        In the first heat they may be several, of a trial that was there before.

        Returns:
            Who dropped out, with the ratio that decided.
        """
        entrant = self._entrants[self.members[self._told]]
        self._told += 1
        if throughput(launches) is None:
            entrant.fate = "failed"
        else:
            entrant.launches += launches
            if self._in_finals:
                entrant.finals.append(launches[-1])
            else:
                entrant.heats = self._round + 1
        dropped = [] if self._in_finals else self._drop_slower_in_heat()
        if self._told == len(self.members):
            dropped += self._end_round()
        return dropped

    def call_in(self, settings: TrainSettings) -> bool:
        """Let a setting that left the race run against the leader once more; False where it may not.

        Of settings that are not separated the thriftiest is best. That may be one the finals know nothing of, or one
        that was dropped as slower by fewer launches than it takes where the launches of the whole study are seen to
        stray. Each may come in once.
        """
        entrant = self._entrants.get(settings)
        leader = self.leader
        if entrant is None or leader is None or entrant.fate not in ("set aside", "slower"):
            return False
        if settings in self._called_in or len(self._called_in) == self.rules.called_in:
            return False
        self._called_in.add(settings)
        begin = self._entrants[leader].first_final + len(self._entrants[leader].finals)
        entrant.fate, entrant.first_final, entrant.last_look = None, begin, self.rules.looks[0]
        entrant.finals = []
        self._begin_round((leader, settings))
        self._in_finals, self._over = True, False
        return True

    @property
    def leader(self) -> TrainSettings | None:
        """The fastest of those that are left: in the finals of those that were in them longest, over their rounds."""
        left = [entrant for entrant in self._entrants.values() if entrant.fate is None and entrant.launches]
        if not left:
            return None
        if any(entrant.finals for entrant in left):
            longest = max(len(entrant.finals) for entrant in left)
            left = [entrant for entrant in left if len(entrant.finals) == longest]
            return _fastest_finalist(left).settings
        return max(left, key=lambda entrant: entrant.speed).settings

    def standing(self) -> tuple[Place, ...]:
        """Every setting that was told, in the order of the first heat, against the present leader."""
        leader = self.leader
        return tuple(self._place(entrant, leader) for entrant in self._entrants.values() if entrant.launches)

    def _place(self, entrant: _Entrant, leader: TrainSettings | None) -> Place:
        if entrant.settings == leader:
            return Place(leader, "leads", None)
        ratio = self._against_leader(entrant, self._entrants[leader]) if leader else None
        if entrant.fate is not None:
            return Place(entrant.settings, entrant.fate, ratio)
        is_tied = bool(entrant.finals) and verdict(ratio, self.rules.margin_fraction) == "tied"
        return Place(entrant.settings, "tied" if is_tied else "undecided", ratio)

    def _against_leader(self, entrant: _Entrant, leader: _Entrant) -> Ratio | None:
        pairs = _final_pairs(leader, entrant)
        if pairs:
            return paired_ratio(pairs, self._finals_confidence(len(pairs)))
        return ratio_between(leader.launches, entrant.launches, self._heats_confidence)

    @property
    def _heats_confidence(self) -> float:
        return 1 - self.rules.error_rate / (self.rules.heats * max(1, len(self._order) - 1))

    def _finals_confidence(self, rounds: int) -> float:
        """At the next look: after n rounds (n / last)^SPENDING_POWER of the error may have been spent."""
        looks = self.rules.looks
        look = next((look for look in looks if look >= rounds), looks[-1])
        before = max((earlier for earlier in looks if earlier < look), default=0)
        share = math.pow(look / looks[-1], SPENDING_POWER) - math.pow(before / looks[-1], SPENDING_POWER)
        return 1 - self.rules.error_rate * share / self._comparisons

    def _drop_slower_in_heat(self) -> list[Place]:
        """Of those that ran in this heat, who is wholly below the fastest of them."""
        ran = [e for e in self._entrants.values() if e.fate is None and e.heats == self._round + 1]
        if not ran:
            return []
        leader = max(ran, key=lambda entrant: entrant.speed)
        return self._drop(
            leader, [entrant for entrant in ran if entrant is not leader and _is_evidence(entrant, leader)]
        )

    def _drop(self, leader: _Entrant, others: list[_Entrant]) -> list[Place]:
        dropped = []
        for entrant in others:
            ratio = self._against_leader(entrant, leader)
            if verdict(ratio, self.rules.margin_fraction) == "slower":
                entrant.fate = "slower"
                dropped.append(Place(entrant.settings, "slower", ratio))
        return dropped

    def _left(self) -> list[_Entrant]:
        return [entrant for entrant in self._entrants.values() if entrant.fate is None]

    def _end_round(self) -> list[Place]:
        if self._in_finals:
            return self._end_final_round()
        left = self._left()
        if len(left) > self.rules.finalists and self._round + 1 < self.rules.heats:
            # The second heat runs backwards, so that who came early comes late and a drift evens out.
            self._begin_round(tuple(entrant.settings for entrant in reversed(left)))
            return []
        self._comparisons = max(1, len(left) - 1)
        by_speed = sorted(left, key=lambda entrant: -entrant.speed)
        for entrant in by_speed[self.rules.finalists :]:
            entrant.fate = "set aside"
        finalists = tuple(entrant.settings for entrant in by_speed[: self.rules.finalists])
        self._over = len(finalists) < 2
        self._in_finals = True
        self._begin_round(finalists)
        return [self._place(entrant, finalists[0]) for entrant in by_speed[self.rules.finalists :]]

    def _end_final_round(self) -> list[Place]:
        leader = self.leader
        left = [self._entrants[settings] for settings in self.members if self._entrants[settings].fate is None]
        if leader is None or len(left) < 2:
            self._over = True
            return []
        others = [entrant for entrant in left if entrant.settings != leader]
        looked_at = [entrant for entrant in others if len(entrant.finals) in self.rules.looks]
        dropped = self._drop(self._entrants[leader], looked_at)
        running = [entrant for entrant in others if entrant.fate is None and not self._is_settled(entrant, leader)]
        self._over = not running
        self._begin_round(tuple(entrant.settings for entrant in reversed(left) if entrant.fate is None))
        return dropped

    def _is_settled(self, entrant: _Entrant, leader: TrainSettings) -> bool:
        if len(entrant.finals) >= (entrant.last_look or self.rules.looks[-1]):
            return True
        return len(entrant.finals) in self.rules.looks and self._place(entrant, leader).standing == "tied"

    def _begin_round(self, members: tuple[TrainSettings, ...]) -> None:
        self.members, self._told = members, 0
        self._round += 1

    def _hopeless_below(self) -> float | None:
        """The throughput under which one launch is certain to be dropped in this heat."""
        ran = [e for e in self._entrants.values() if e.fate is None and e.launches]
        leader = max(ran, key=lambda entrant: entrant.speed, default=None)
        alone = throughput(leader.launches[-1:]) if leader else None
        return None if alone is None else alone.value * unpaired_ratio(alone, alone, self._heats_confidence).low


def _is_evidence(entrant: _Entrant, leader: _Entrant) -> bool:
    """False where other processes slowed the setting and not the leader."""
    return was_disturbed(leader.launches[-1]) or not was_disturbed(entrant.launches[-1])


def _final_speed(entrant: _Entrant) -> float:
    measured = throughput(entrant.finals)
    return measured.value if measured else 0.0


def _fastest_finalist(finalists: list[_Entrant]) -> _Entrant:
    """By the mean over their rounds, unless the pairs of two that nobody disturbed say otherwise."""
    ordered = sorted(finalists, key=_final_speed)
    fastest = ordered[-1]
    for entrant in reversed(ordered[:-1]):
        ratio = paired_ratio(_final_pairs(fastest, entrant), 0.5)
        if ratio is not None and ratio.value > 1:
            fastest = entrant
    return fastest


def _final_pairs(leader: _Entrant, entrant: _Entrant) -> list[tuple[Launch, Launch]]:
    """The launches of the rounds of the finals that both were in."""
    begin = max(leader.first_final, entrant.first_final)
    return list(
        zip(leader.finals[begin - leader.first_final :], entrant.finals[begin - entrant.first_final :], strict=False)
    )
