"""The help, made from the table of keys and the marks in use."""

from __future__ import annotations

from gputune_tui.tui.actions import ACTIONS, key_text
from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.widgets.lines import Line

TERMS = (
    ("A", "what differences and ratios are shown against; at first the baseline"),
    ("B", "the setting you change and run"),
    ("±", "half of the 95 % interval of the throughput, launches included"),
    ("=2", "tied: not separated from the fastest; among those the least memory comes first"),
    ("-", "no rank: failed, over budget or disqualified; the reason stands at the end of the row"),
    ("peak", "what the budget is held against: the device's peak for the process"),
    ("data", "share of a step spent waiting for the loader"),
    ("N/A", "unknown; never shown as 0"),
    ("UTL", "share of the time in which any kernel ran, not how full the GPU was: see power and clock beside it"),
    ("pwr therm", "the clocks are held down: by the power limit, by heat; hw, brake, sync: by the board"),
    ("SM%", "share of the time in which a process's kernels ran; those of all processes do not add up"),
)


def help_lines(glyphs: Glyphs, pane: str = "") -> list[Line]:
    """Keys first, then what the marks mean; with a pane's name the keys that it has."""
    lines: list[Line] = [(("Keys", "strong"),)]
    for action in ACTIONS:
        if pane and action.pane not in ("", pane):
            continue
        keys = " ".join(map(key_text, action.keys))
        lines.append(((f"  {keys:<16}", "accent"), (action.help, "")))
    lines += [(("", ""),), (("Marks and terms", "strong"),)]
    lines += [((f"  {term:<16}", "accent"), (meaning, "")) for term, meaning in TERMS]
    lines.append(((f"  {glyphs.mark:<16}", "accent"), ("the memory budget on a GPU's memory bar", "")))
    lines.append(((f"  {glyphs.cursor:<16}", "accent"), ("B differs from A here; a process of a trial; what runs", "")))
    ends = "  " + " ".join(glyphs.ticks)
    lines.append(((f"{ends:<18}", "accent"), ("on graphs: a trial started, a trial ended", "")))
    return lines
