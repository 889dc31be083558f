"""Compare trials that were launched in rounds: only what both did counts, since the machine drifts between rounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputune_tui.domain.trial import Launch
from gputune_tui.ranking.estimates import log_rates
from gputune_tui.ranking.statistics import (
    PRIOR_SPREAD,
    LaunchSpread,
    Ratio,
    paired_ratio,
    throughput,
    unpaired_ratio,
)

PAIRED_FROM = 3
"""A heat lasts as long as the launches of all its settings, so that a pair or two out of it are further apart in time
than the prior of a pair allows for: they are compared as launches at different times."""


def race_of(launch: Launch) -> str | None:
    """The name of the race that a launch belongs to; None outside of a race. Of two names the greater is later."""
    return None if launch.round is None else launch.round.partition(".")[0]


def round_of(launch: Launch) -> str | None:
    """Which round of its race a launch belongs to, whichever attempt at that round; None outside of a race."""
    return None if launch.round is None else launch.round.partition(".")[2].partition(".")[0]


def latest_race(launches: Iterable[Launch]) -> str | None:
    """The name of the latest race that any of the launches belongs to."""
    return max((name for launch in launches if (name := race_of(launch)) is not None), default=None)


def shared_rounds(a: Sequence[Launch], b: Sequence[Launch]) -> list[tuple[Launch, Launch]]:
    """The launches of A and B that ran in the same rounds and measured something, as pairs in the order of A's."""
    of_a, of_b = _by_round(a), _by_round(b)
    return [(launch, of_b[name]) for name, launch in of_a.items() if name in of_b]


def ratio_between(
    a: Sequence[Launch], b: Sequence[Launch], confidence: float = 0.95, spread: LaunchSpread = PRIOR_SPREAD
) -> Ratio | None:
    """Throughput of B over that of A: from the rounds that they share, or from all launches where they share none.

    None where either has no block that counts. `spread` is how launches differ, where they share no rounds.
    """
    shared = shared_rounds(a, b)
    if len(shared) >= PAIRED_FROM:
        return paired_ratio(shared, confidence)
    if shared:
        a, b = [pair[0] for pair in shared], [pair[1] for pair in shared]
    first, second = throughput(a, spread=spread), throughput(b, spread=spread)
    return unpaired_ratio(first, second, confidence, spread) if first and second else None


def _by_round(launches: Sequence[Launch]) -> dict[str, Launch]:
    return {launch.round: launch for launch in launches if launch.round is not None and log_rates(launch)}
