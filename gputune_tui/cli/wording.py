"""Words that tables and progress share: settings, throughput, and text that is safe to print."""

from __future__ import annotations

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.ranking.statistics import Throughput
from gputune_tui.units import UNKNOWN, percent_text, three_digits


def printable(text: str) -> str:
    """The text on one line, with control characters replaced: what users name their things stays data."""
    return "".join(c if c.isprintable() else " " if c in "\t\n\r" else "\ufffd" for c in text)


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
