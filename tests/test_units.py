"""Bytes, seconds and ratios as text, and sizes, fractions and durations read from it."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui import units
from gputune_tui.errors import UsageError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "N/A"),
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (4 << 30, "4.00 GiB"),
        (58 << 30, "58.0 GiB"),
        (141 << 30, "141 GiB"),
        (1023.4 * 2**30, "1023 GiB"),
        (1023.6 * 2**30, "1.00 TiB"),
        (2**63, "8192 PiB"),
        (-(3 << 20), "-3.00 MiB"),
    ],
)
def test_bytes_text(value: float | None, text: str) -> None:
    assert units.bytes_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "N/A"),
        (0, "0"),
        (1842.4, "1842"),
        (99.96, "100"),
        (79.34, "79.3"),
        (9.996, "10.0"),
        (9.99, "9.99"),
        (0.9996, "1.00"),
        (0.0123, "0.0123"),
        (-4.5, "-4.50"),
    ],
)
def test_three_digits(value: float | None, text: str) -> None:
    assert units.three_digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "N/A"),
        (0.0, "0 µs"),
        (25e-6, "25.0 µs"),
        (0.0123, "12.3 ms"),
        (0.9996, "1.00 s"),
        (4.514, "4.51 s"),
        (59.94, "59.9 s"),
        (59.96, "1:00"),
        (125, "2:05"),
        (3599.6, "1:00:00"),
        (3725, "1:02:05"),
        (100 * 3600, "100:00:00"),
    ],
)
def test_seconds_text(value: float | None, text: str) -> None:
    assert units.seconds_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "N/A"), (0.0, "0 %"), (0.012, "1.2 %"), (0.0996, "10 %"), (0.12, "12 %"), (1.0, "100 %"), (-0.5, "-50 %")],
)
def test_percent_text(value: float | None, text: str) -> None:
    assert units.percent_text(value) == text


def test_ratio_text() -> None:
    assert units.ratio_text(1.234) == "1.23x"
    assert units.ratio_text(None) == "N/A"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        ((1.234, 1.2, 1.26), ("1.23x", "1.20 to 1.26")),
        ((0.9, 0.85, 0.996), ("0.900x", "0.850 to 0.996")),
        ((1.02, 1.004, 1.04), ("1.020x", "1.004 to 1.040")),
        ((1.0, 0.5, 2.0), ("1.00x", "0.50 to 2.00")),
    ],
)
def test_an_interval_shows_on_which_side_of_one_it_ends(
    ratio: tuple[float, float, float], text: tuple[str, str]
) -> None:
    assert units.ratio_interval_text(*ratio) == text


@pytest.mark.parametrize(("fraction", "text"), [(0.03, "3 %"), (0.025, "2.5 %"), (0.1, "10 %"), (0.001, "0.1 %")])
def test_a_given_percentage_is_said_as_it_was_given(fraction: float, text: str) -> None:
    assert units.given_percent_text(fraction) == text


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1024", 1024),
        ("1B", 1),
        ("20GiB", 20 << 30),
        ("2G", 2 << 30),
        ("2g", 2 << 30),
        ("2GB", 2 * 10**9),
        ("2gb", 2 * 10**9),
        ("512 MiB", 512 << 20),
        (" 1.5 TiB ", 3 << 39),
        ("80TB", 80 * 10**12),
        ("7KB", 7000),
    ],
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert units.parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "GiB",
        "0",
        "0GiB",
        "-1GiB",
        "1e9",
        "4 apples",
        "1,5GiB",
        "80%",
        "nan",
        "inf",
        "0.0001B",
        "1GiB2",
        "9" * 400,
    ],
)
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(text))):
        units.parse_size(text)


@pytest.mark.parametrize(("text", "fraction"), [("3%", 0.03), ("0.03", 0.03), (" 12.5 % ", 0.125), ("99.9%", 0.999)])
def test_fractions_are_read(text: str, fraction: float) -> None:
    assert units.parse_fraction(text) == pytest.approx(fraction)


@pytest.mark.parametrize("text", ["", "0", "0%", "1", "100%", "3", "-1%", "three", "3%%", "nan"])
def test_what_is_no_fraction_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a fraction"):
        units.parse_fraction(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45", 45.0), ("90s", 90.0), ("10m", 600.0), ("1h30m", 5400.0), ("1h2m3.5s", 3723.5), (" 2h ", 7200.0)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5m", "10 minutes", "5d", "1m1h", "s", "ten", "9" * 400])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        units.parse_duration(text)


@given(st.integers(1, 2**55))
def test_shown_bytes_read_back_within_rounding(size_bytes: int) -> None:
    text = units.bytes_text(size_bytes)
    if "PiB" not in text:  # the parser takes sizes of memories, not of data centres
        assert units.parse_size(text) == pytest.approx(size_bytes, rel=0.006)


@given(st.floats(1e-6, 1e6))
def test_shown_numbers_keep_three_digits(value: float) -> None:
    text = units.three_digits(value)
    assert float(text) == pytest.approx(value, rel=0.006)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    for parse in (units.parse_size, units.parse_fraction, units.parse_duration):
        with contextlib.suppress(UsageError):
            assert parse(text) > 0
