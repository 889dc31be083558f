"""The only place where bytes, seconds and ratios become text, and sizes are read from it ("N/A" for None)."""

from __future__ import annotations

import re

from gputune_tui.errors import UsageError

UNKNOWN = "N/A"
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_FACTORS = {
    "": 1,
    "B": 1,
    "K": 1024,
    "KIB": 1024,
    "KB": 10**3,
    "M": 1024**2,
    "MIB": 1024**2,
    "MB": 10**6,
    "G": 1024**3,
    "GIB": 1024**3,
    "GB": 10**9,
    "T": 1024**4,
    "TIB": 1024**4,
    "TB": 10**12,
}


def bytes_text(value: int | float | None) -> str:
    """Binary units with three significant digits: "58.0 GiB"."""
    if value is None:
        return UNKNOWN
    size, unit = float(value), 0
    while abs(size) >= 1023.5 and unit < len(_BINARY) - 1:
        size /= 1024
        unit += 1
    return f"{size:.0f} {_BINARY[unit]}" if unit == 0 else f"{three_digits(size)} {_BINARY[unit]}"


def three_digits(value: float | None) -> str:
    """Three significant digits without an exponent: 1842, 79.3, 0.0123."""
    if value is None:
        return UNKNOWN
    magnitude = abs(value)
    if magnitude >= 99.95 or magnitude == 0:
        return f"{value:.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    if magnitude >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.3g}"


def seconds_text(value: float | None) -> str:
    """A duration as a person reads it: "12.3 ms", "4.51 s", "2:05", "1:02:05"."""
    if value is None:
        return UNKNOWN
    if value < 1e-3:
        return f"{three_digits(value * 1e6)} µs"
    if value < 0.9995:
        return f"{three_digits(value * 1e3)} ms"
    if value < 59.95:
        return f"{three_digits(value)} s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def ratio_text(value: float | None, digits: int = 2) -> str:
    """A speed-up: "1.23x"."""
    return UNKNOWN if value is None else f"{value:.{digits}f}x"


def ratio_interval_text(value: float, low: float, high: float) -> tuple[str, str]:
    """A speed-up and its interval: "1.23x", "1.20 to 1.26".

    More than two digits are shown where these would hide on which side of 1 an end of the interval lies.
    """
    digits = next((n for n in (2, 3) if all(round(end, n) != 1 for end in (low, high))), 4)
    return ratio_text(value, digits), f"{low:.{digits}f} to {high:.{digits}f}"


def ratio_with_interval_text(value: float | None, low: float | None, high: float | None, of: str = "") -> str | None:
    """ "1.23x A (1.20 to 1.26)", where `of` names what the ratio is of; None where a figure is unknown."""
    if value is None or low is None or high is None:
        return None
    ratio, interval = ratio_interval_text(value, low, high)
    return f"{ratio} {of} ({interval})" if of else f"{ratio} ({interval})"


def percent_text(fraction: float | None) -> str:
    """A fraction as percent: "12 %", "1.2 %"."""
    if fraction is None:
        return UNKNOWN
    percent = fraction * 100
    return f"{percent:.0f} %" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f} %"


def given_percent_text(fraction: float) -> str:
    """A percentage that a person has set, without more digits than it needs: "3 %", "2.5 %"."""
    return f"{fraction * 100:.3g} %"


def fixed_percent_text(fraction: float | None) -> str:
    """Whole percent in a fixed width, for figures that change in place: " 97 %", "100 %", "  N/A"."""
    return f"{UNKNOWN:>5}" if fraction is None else f"{fraction * 100:3.0f} %"


def part_text(part_bytes: int | None, whole_bytes: int | None) -> str:
    """ "58.0/140 GiB"; both units where they differ."""
    part, whole = bytes_text(part_bytes), bytes_text(whole_bytes)
    same = part.split(" ")[-1] == whole.split(" ")[-1] and " " in part
    return f"{part.split(' ')[0]}/{whole}" if same else f"{part} / {whole}"


def rate_text(bytes_per_s: float | None) -> str:
    """Binary units per second: "412 MiB/s"."""
    return UNKNOWN if bytes_per_s is None else f"{bytes_text(bytes_per_s)}/s"


def duration_text(seconds: float | None) -> str:
    """How long something has run, in at most six columns that change rarely: "41 s", "12 min", "3h05", "4d02h"."""
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes:02}"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours:02}h"


def parse_size(text: str) -> int:
    """Bytes of "20GiB", "512MiB", "2G" (binary), "2GB" (10⁹), "1024".

    Raises:
        UsageError: not a positive size.
    """
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([a-zA-Z]*)\s*", text)
    factor = _FACTORS.get(match[2].upper()) if match else None
    if match is None or factor is None or int(float(match[1]) * factor) <= 0:
        raise UsageError(f"{text!r} is not a size; write for example 20GiB, 512MiB or 80%")
    return int(float(match[1]) * factor)


def parse_fraction(text: str) -> float:
    """The fraction of "3%" or "0.03".

    Raises:
        UsageError: not between 0 and 1, both excluded.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", text)
    fraction = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0 < fraction < 1:
        raise UsageError(f"{text!r} is not a fraction; write for example 3% or 0.03")
    return fraction


def parse_duration(text: str) -> float:
    """Seconds of "10m", "90s", "1h30m", "45".

    Raises:
        UsageError: not a positive duration.
    """
    match = re.fullmatch(r"\s*(?:(\d{1,9})h)?\s*(?:(\d{1,9})m)?\s*(?:(\d{1,9}(?:\.\d{1,9})?)s?)?\s*", text)
    parts = [float(part or 0) for part in match.groups()] if match else [0.0, 0.0, 0.0]
    seconds = parts[0] * 3600 + parts[1] * 60 + parts[2]
    if seconds <= 0:
        raise UsageError(f"{text!r} is not a duration; write for example 10m, 90s or 1h30m")
    return seconds
