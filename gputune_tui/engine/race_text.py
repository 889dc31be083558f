"""The events of a race in words, the same on the screen and on the command line."""

from __future__ import annotations

from gputune_tui.engine.events import Contender, Dropped, RaceFinished, RoundFinished
from gputune_tui.units import percent_text, ratio_text, seconds_text


def dropped_text(event: Dropped) -> str:
    """ "trial 7 is dropped: 0.62x trial 3 (0.55x to 0.70x), clearly slower"."""
    trial = event.trial
    figures = "" if trial.ratio is None else f": {ratio_text(trial.ratio)} trial {event.leader_id} {_interval(trial)}"
    if trial.standing == "set aside":
        return f"trial {trial.trial_id} is set aside{figures}, not separated but not among the fastest"
    return f"trial {trial.trial_id} is dropped{figures}, clearly slower"


def round_text(event: RoundFinished) -> str:
    """ "round 3: trial 3 leads; trial 5 0.97x (0.90x to 1.05x): undecided"."""
    others = [f"trial {o.trial_id} {ratio_text(o.ratio)} {_interval(o)}: {o.standing}" for o in event.others]
    return "; ".join([f"round {event.rounds}: trial {event.leader_id} leads", *others])


def finished_text(event: RaceFinished) -> str:
    """Who leads, who is tied, who could not be decided and in what time, and how many are out."""
    words = [f"race over: trial {event.leader_id} leads"]
    ties = _of(event, "tied")
    if ties:
        words.append(f"{_trials(ties)} tied with it within {percent_text(event.margin_fraction)}")
    if undecided := _of(event, "undecided"):
        words.append(f"{_trials(undecided)} undecided after {seconds_text(event.elapsed_s)}")
    if aside := _of(event, "set aside"):
        words.append(f"{_trials(aside)} set aside")
    if slower := _of(event, "slower"):
        words.append(f"{len(slower)} slower")
    return "; ".join(words)


def _of(event: RaceFinished, standing: str) -> list[int]:
    return [other.trial_id for other in event.others if other.standing == standing]


def _trials(ids: list[int]) -> str:
    return ("trial " if len(ids) == 1 else "trials ") + ", ".join(map(str, ids))


def _interval(trial: Contender) -> str:
    return f"({ratio_text(trial.low)} to {ratio_text(trial.high)})"
