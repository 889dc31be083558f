"""What a leaderboard's row is called (settings, throughput, why it has no rank), and a verdict in words."""

from __future__ import annotations

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import TrialState
from gputune_tui.ranking.leaderboard import Row
from gputune_tui.ranking.statistics import Ratio, Throughput, Verdict
from gputune_tui.units import (
    UNKNOWN,
    given_percent_text,
    percent_text,
    ratio_interval_text,
    ratio_with_interval_text,
    three_digits,
)


def settings_text(settings: TrainSettings, reference: TrainSettings | None) -> str:
    """What differs from the reference; the batch is always told, since the global one is fixed."""
    if reference is None:
        reference = TrainSettings()
    different = settings.difference(reference)
    different.pop("micro_batch_size", None)
    different.pop("accumulation_steps", None)
    batch = f"{settings.micro_batch_size}x{settings.accumulation_steps}"
    words = [settings.precision, batch]
    words += [f"{name}={value}" for name, value in different.items() if name != "precision"]
    return " ".join(words) + (" (baseline)" if settings == reference else "")


def speed_text(speed: Throughput | None) -> str:
    """ "1842 ±4.2 %"."""
    if speed is None:
        return UNKNOWN
    half = (speed.high - speed.low) / 2 / speed.value
    return f"{three_digits(speed.value)} ±{percent_text(half)}"


def rank_text(row: Row) -> str:
    """ "1", "=2" for tied with the fastest, "-" without a rank."""
    if row.rank is None:
        return "-"
    return f"{'=' if row.tied_with_best and row.rank > 1 else ''}{row.rank}"


def data_wait_text(row: Row) -> str:
    """The share of a step spent waiting for data."""
    breakdown = row.breakdown
    if breakdown is None or breakdown.data_wait_s is None:
        return UNKNOWN
    return percent_text(breakdown.data_wait_s / breakdown.total_s)


def why_unranked(row: Row) -> str | None:
    """Why the row has no rank, in words; None where it has one."""
    failure = row.trial.failure
    if failure is not None:
        return f"{failure.reason.value}: {failure.message}"
    if row.trial.state is not TrialState.COMPLETE:
        return str(row.trial.state.value).lower()
    if row.disqualified is not None:
        return f"disqualified: {row.disqualified}"
    if row.feasible is False:
        return "over budget"
    return "memory peak unknown" if row.feasible is None else None


def verdict_text(said: Verdict, ratio: Ratio | None, margin_fraction: float, elapsed_s: float | None = None) -> str:
    """B against A: "B is 1.23x A (1.20 to 1.26)", "tied within 3 % (0.99 to 1.02)", "undecided after 95 s: ..."."""
    undecided = "undecided" if elapsed_s is None else f"undecided after {elapsed_s:.0f} s"
    if ratio is None:
        return undecided
    if said == "tied":
        interval = ratio_interval_text(ratio.value, ratio.low, ratio.high)[1]
        return f"tied within {given_percent_text(margin_fraction)} ({interval})"
    found = f"B is {ratio_with_interval_text(ratio.value, ratio.low, ratio.high, 'A')}"
    return f"{undecided}: {found}" if said == "undecided" else found
