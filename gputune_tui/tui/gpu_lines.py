"""One GPU as lines, in every density of the layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gputune_tui.domain.telemetry import DeviceSnapshot, MigSnapshot
from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.graph import Marks, graph_rows
from gputune_tui.tui.panel_layout import BAR_ROWS, Density, PanelLayout
from gputune_tui.tui.widgets.lines import Line, Span, fitted, wrapped
from gputune_tui.units import UNKNOWN, fixed_percent_text, part_text

BUSY_FRACTION, FULL_FRACTION = 0.75, 0.90
"""From here on a bar is coloured: a busy GPU is good news, full memory is not."""
WARM_BELOW_SLOWDOWN_C = 10.0
WARM_C, HOT_C = 75.0, 85.0
"""Where the card does not tell at which temperature it slows down."""
LABEL = 4
FULL_ROW_COLUMNS = 72
"""From this width on one line holds both bars and all that is drawn."""
WIDE_CARD_COLUMNS = 64
"""From this width on what holds the clocks down stands in whole words."""
CHIPS = {
    "power cap": "pwr",
    "thermal": "therm",
    "power brake": "brake",
    "hardware slowdown": "hw",
    "sync boost": "sync",
}
LOST = "LOST: the driver no longer reaches this GPU; the others go on"


@dataclass(frozen=True)
class Past:
    """What graphs need."""

    util: Sequence[float | None] = ()
    memory: Sequence[float | None] = ()
    taken: int = 0
    """Values there have ever been."""
    zoom: int = 1
    marks: Marks = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """What stands in one place of the grid: a GPU, or an instance of one."""

    device: DeviceSnapshot
    instance: MigSnapshot | None = None
    is_ours: bool = False
    """A trial runs on it."""
    is_selected: bool = False
    past: Past = Past()
    budget_bytes: int | None = None

    @property
    def place(self) -> str:
        """ "0", or "0:7" for an instance."""
        if self.instance is None:
            return str(self.device.index)
        number = self.instance.gpu_instance
        return f"{self.device.index}:{'?' if number is None else number}"


def entry_lines(entry: Entry, layout: PanelLayout, glyphs: Glyphs) -> list[Line]:
    """As many lines as the layout gives a GPU; not fitted to its width."""
    if layout.density is Density.STRIP:
        return [((device_cell(entry.device, glyphs), "cursor" if entry.is_selected else ""),)]
    if layout.density >= Density.BARS:
        return _card(entry, layout.column_width, layout.graph_rows, glyphs)
    if entry.instance is not None:
        return [_instance_row(entry, layout.column_width, glyphs)]
    return [device_row(entry, layout.column_width, glyphs)]


def device_cell(device: DeviceSnapshot, glyphs: Glyphs) -> str:
    """One GPU in two or three columns."""
    if device.state == "lost":
        return f"{device.index}x"
    level = glyphs.graph([device.util_fraction], 1) if device.util_fraction is not None else "·"
    return f"{device.index}{level}"


def _card(entry: Entry, width: int, graphs: int, glyphs: Glyphs) -> list[Line]:
    device, instance = entry.device, entry.instance
    head = _head(entry, glyphs)
    if device.state == "lost":
        name = f" {device_name(device)}" if device.name else ""
        return [(head, (name, "")), *wrapped(LOST, width, "bad", BAR_ROWS - 1)]
    kind = "dim" if device.state == "stale" else ""
    if instance is not None:
        name = f" {(instance.name or 'MIG instance').removeprefix('NVIDIA ')}"
        memory = part_text(instance.memory_used_bytes, instance.memory_total_bytes)
        part = share(instance.memory_used_bytes, instance.memory_total_bytes)
        lines: list[Line] = [
            (head, (name, kind)),
            (("UTL ", "dim"), (f"{UNKNOWN} (MIG)", kind)),
            bar_line("MEM", part, memory, width, glyphs, entry.budget_bytes, instance.memory_total_bytes),
        ]
        return lines
    facts = vitals(device, kind, chips=width < WIDE_CARD_COLUMNS)
    room = width - len(head[0]) - sum(len(text) for text, _ in facts) - 3
    name = f" {fitted(device_name(device), max(6, room)).rstrip()}  "
    memory = part_text(device.memory_used_bytes, device.memory_total_bytes)
    if device.memory_is_unified:
        memory += " unified"
    lines = [
        (head, (name, kind or "strong"), *facts),
        bar_line("UTL", device.util_fraction, fixed_percent_text(device.util_fraction), width, glyphs),
        bar_line("MEM", memory_fraction(device), memory, width, glyphs, entry.budget_bytes, device.memory_total_bytes),
    ]
    if kind:
        lines[1:] = [tuple((text, kind) for text, _ in line) for line in lines[1:]]
    return lines + _graphs(entry.past, width, graphs, glyphs)


def _graphs(past: Past, width: int, rows: int, glyphs: Glyphs) -> list[Line]:
    """Utilisation, and below it memory where there is room for both."""
    memory_rows = 0 if rows < 2 else max(1, rows // 3)
    above = graph_rows(past.util, past.taken, width, rows - memory_rows, glyphs, past.zoom, past.marks)
    below = graph_rows(past.memory, past.taken, width, memory_rows, glyphs, past.zoom)
    found: list[Line] = [((row, "accent"),) for row in above]
    found += [((row, "dim"),) for row in below]
    return found


def device_row(entry: Entry, width: int, glyphs: Glyphs) -> Line:
    """One GPU in one line: both bars and what it draws, or in little room one bar and the essentials."""
    device = entry.device
    head = _head(entry, glyphs)
    if device.state == "lost":
        return (head, (" " + LOST, "bad"))
    kind = "dim" if device.state == "stale" else ""
    utilisation = fixed_percent_text(device.util_fraction)
    used = part_text(device.memory_used_bytes, device.memory_total_bytes).replace("iB", "")
    load, full = kind or load_kind(device.util_fraction), kind or full_kind(memory_fraction(device))
    if width < FULL_ROW_COLUMNS:
        facts = _short_vitals(device, kind)
        room = width - len(head[0]) - len(utilisation) - len(used) - sum(len(text) for text, _ in facts) - 4
        bar = glyphs.bar(device.util_fraction, max(4, min(16, room)))
        return (head, (" ", ""), (bar, load), (utilisation + " ", kind), (used + " ", full), *facts)
    size = max(6, min(40, (width - 54) // 2))
    memory = glyphs.bar(memory_fraction(device), size, share(entry.budget_bytes, device.memory_total_bytes))
    return (
        head,
        (" ", ""),
        (glyphs.bar(device.util_fraction, size), load),
        (utilisation + " ", kind),
        (memory, full),
        (f" {used:<11} ", kind),
        *vitals(device, kind, chips=True),
    )


def _instance_row(entry: Entry, width: int, glyphs: Glyphs) -> Line:
    instance = entry.instance
    assert instance is not None
    part = share(instance.memory_used_bytes, instance.memory_total_bytes)
    used = part_text(instance.memory_used_bytes, instance.memory_total_bytes).replace("iB", "")
    head, name = _head(entry, glyphs), f" MIG {(instance.name or '').rpartition(' ')[2]} "
    bar = glyphs.bar(part, max(4, min(24, width - len(head[0]) - len(name) - len(used) - 1)))
    return (head, (name, "dim"), (bar, full_kind(part)), (f" {used}", ""))


def vitals(device: DeviceSnapshot, kind: str = "", chips: bool = False) -> Line:
    """Temperature, power and clock, and in words what is wrong."""
    limit = "" if device.power_limit_w is None else f"/{device.power_limit_w:.0f}"
    power = f"power {UNKNOWN}" if device.power_w is None else f"{device.power_w:.0f}{limit} W"
    clock = f"clock {UNKNOWN}" if device.sm_clock_mhz is None else f"{device.sm_clock_mhz} MHz"
    line: tuple[Span, ...] = (_celsius(device, kind), (f"  {power}  {clock}", kind))
    return line + _chips(device, chips)


def _short_vitals(device: DeviceSnapshot, kind: str) -> Line:
    watts = UNKNOWN if device.power_w is None else f"{device.power_w:.0f}W"
    degrees, hot = _celsius(device, kind)
    return ((degrees.replace(" °C", "°"), hot), (f" {watts}", kind), *_chips(device, short=True))


def _chips(device: DeviceSnapshot, short: bool) -> tuple[Span, ...]:
    found: list[Span] = []
    if device.state == "stale":
        found.append(("  stale" if device.stale_s is None else f"  stale {device.stale_s:.0f} s", "warn"))
    if device.mig_enabled:
        found.append((f"  MIG {len(device.mig)}" if device.mig else "  MIG", "accent"))
    words = [CHIPS.get(word, word) if short else word for word in device.throttle]
    if words:
        found.append(("  " + (" " if short else ", ").join(words), "warn"))
    return tuple(found)


def _celsius(device: DeviceSnapshot, kind: str) -> Span:
    """With a mark beside the colour where it is hot."""
    value = device.temperature_c
    if value is None:
        return (f"{UNKNOWN} °C", kind)
    slowdown = device.slowdown_temperature_c
    warm, hot = (WARM_C, HOT_C) if slowdown is None else (slowdown - WARM_BELOW_SLOWDOWN_C, slowdown)
    if value >= hot:
        return (f"{value:.0f} °C!!", "bad")
    return (f"{value:.0f} °C!", "warn") if value >= warm else (f"{value:.0f} °C", kind)


def _head(entry: Entry, glyphs: Glyphs) -> Span:
    mark = glyphs.cursor if entry.is_ours else " "
    text = f"{entry.place:>2}{mark}" if entry.is_ours else f"{entry.place:>2}"
    return (text, "cursor" if entry.is_selected else "strong")


def device_name(device: DeviceSnapshot) -> str:
    """The model without its maker."""
    return (device.name or "unknown GPU").removeprefix("NVIDIA ")


def bar_line(
    label: str,
    fraction: float | None,
    value: str,
    width: int,
    glyphs: Glyphs,
    mark_bytes: int | None = None,
    whole_bytes: int | None = None,
) -> Line:
    """A labelled bar with its value; `mark_bytes` of `whole_bytes` are marked on it."""
    room = width - LABEL - len(value) - 1
    if room < 8:
        return ((f"{label} {value.strip()}", ""),)
    kind = load_kind(fraction) if label == "UTL" else full_kind(fraction)
    bar = glyphs.bar(fraction, room, share(mark_bytes, whole_bytes))
    return ((f"{label} ", "dim"), (bar, kind), (f" {value}", ""))


def share(part: float | None, whole: float | None) -> float | None:
    """A part of a whole; unknown where one of them is, or the whole is nothing."""
    return part / whole if part is not None and whole else None


def memory_fraction(device: DeviceSnapshot) -> float | None:
    """Used of total."""
    return share(device.memory_used_bytes, device.memory_total_bytes)


def load_kind(fraction: float | None) -> str:
    """Colour of a bar whose being full is good."""
    return "good" if fraction is not None and fraction >= BUSY_FRACTION else ""


def full_kind(fraction: float | None) -> str:
    """Colour of a bar whose being full is bad."""
    if fraction is None or fraction < BUSY_FRACTION:
        return ""
    return "bad" if fraction >= FULL_FRACTION else "warn"
