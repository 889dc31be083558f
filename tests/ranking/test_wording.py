"""A verdict in words."""

from __future__ import annotations

import pytest

from gputune_tui.ranking.statistics import Ratio, Verdict
from gputune_tui.ranking.wording import verdict_text


@pytest.mark.parametrize(
    ("said", "ratio", "text"),
    [
        ("faster", (1.23, 1.2, 1.26), "B is 1.23x A (1.20 to 1.26)"),
        ("slower", (0.8, 0.75, 0.85), "B is 0.80x A (0.75 to 0.85)"),
        ("tied", (1.0, 0.98, 1.02), "tied within 3 % (0.98 to 1.02)"),
        ("undecided", (1.1, 0.9, 1.3), "undecided after 95 s: B is 1.10x A (0.90 to 1.30)"),
        ("undecided", None, "undecided after 95 s"),
    ],
)
def test_verdicts_in_words(said: Verdict, ratio: tuple[float, float, float] | None, text: str) -> None:
    found = None if ratio is None else Ratio(*ratio, 0.95)
    assert verdict_text(said, found, 0.03, 95.2) == text


def test_how_long_it_took_may_be_unknown() -> None:
    assert verdict_text("undecided", None, 0.03) == "undecided"
