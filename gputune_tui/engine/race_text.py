"""The events of a race in words, the same on the screen and on the command line."""

from __future__ import annotations

from gputune_tui.engine.events import Dropped, RaceFinished, RoundFinished
from gputune_tui.units import given_percent_text, ratio_with_interval_text, seconds_text

LEAST_TOLD_S = 1.0
"""Less is no time of a race: it was read from the journal."""


def dropped_text(event: Dropped) -> str:
    """ "trial 7 is dropped: 0.62x trial 3 (0.55 to 0.70), clearly slower"."""
    trial = event.trial
    found = ratio_with_interval_text(trial.ratio, trial.low, trial.high, f"trial {event.leader_id}")
    figures = "" if found is None else f": {found}"
    if trial.standing == "set aside":
        return f"trial {trial.trial_id} is set aside{figures}, not among the fastest"
    return f"trial {trial.trial_id} is dropped{figures}, clearly slower"


def round_text(event: RoundFinished) -> str:
    """ "round 3: trial 3 leads; trial 5 0.97x (0.90 to 1.05): undecided"."""
    others = [
        f"trial {o.trial_id} {ratio_with_interval_text(o.ratio, o.low, o.high) or ''}: {o.standing}"
        for o in event.others
    ]
    return "; ".join([f"round {event.rounds}: trial {event.leader_id} leads", *others])


def finished_text(event: RaceFinished) -> str:
    """Who leads, who is tied, who could not be decided and in what time, and how many are out."""
    words = [f"race over: trial {event.leader_id} leads"]
    ties = _of(event, "tied")
    if ties:
        words.append(f"{_trials(ties)} tied with it within {given_percent_text(event.margin_fraction)}")
    if undecided := _of(event, "undecided"):
        after = f" after {seconds_text(event.elapsed_s)}" if event.elapsed_s >= LEAST_TOLD_S else ""
        words.append(f"{_trials(undecided)} undecided{after}")
    if aside := _of(event, "set aside"):
        words.append(f"{_trials(aside)} set aside")
    if slower := _of(event, "slower"):
        words.append(f"{len(slower)} slower")
    return "; ".join(words)


def _of(event: RaceFinished, standing: str) -> list[int]:
    return [other.trial_id for other in event.others if other.standing == standing]


def _trials(ids: list[int]) -> str:
    return ("trial " if len(ids) == 1 else "trials ") + ", ".join(map(str, ids))
