"""The host as lines: cores, load, memory, shared memory, disks and network, and its recent past."""

from __future__ import annotations

from collections.abc import Sequence

from gputune_tui.domain.telemetry import HostSnapshot
from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.gpu_lines import bar_line, share
from gputune_tui.tui.graph import Marks, graph_rows
from gputune_tui.tui.widgets.lines import Line
from gputune_tui.units import fixed_percent_text, part_text, rate_text, three_digits

FIGURES_COLUMNS = 40
"""Beside the cores."""


def host_title(host: HostSnapshot) -> tuple[str, str]:
    """Name and value of the CPU panel."""
    limited = host.effective_cpus < host.cpus
    cpus = f"{three_digits(host.effective_cpus)} of {host.cpus} cores (limited)" if limited else f"{host.cpus} cores"
    return f"CPU {cpus}", fixed_percent_text(host.cpu_fraction).strip()


def host_lines(
    host: HostSnapshot,
    history: Sequence[float | None],
    width: int,
    glyphs: Glyphs,
    rows: int = 5,
    taken: int = 0,
    zoom: int = 1,
    marks: Marks | None = None,
) -> list[Line]:
    """So many lines, the graph below taking what the figures leave."""
    if rows <= 1:
        return [_in_one(host, width, glyphs)][:rows]
    total = host.memory_limit_bytes or host.memory_total_bytes
    memory = part_text(host.memory_used_bytes, total)
    shm = part_text(host.shm_used_bytes, host.shm_total_bytes)
    cores = core_strip(host.per_cpu_fractions, max(1, width - FIGURES_COLUMNS), glyphs)
    use = fixed_percent_text(host.cpu_fraction)
    waits = "" if host.iowait_fraction is None else f"   iowait {fixed_percent_text(host.iowait_fraction).strip()}"
    lines: list[Line] = [
        ((cores, "accent"), (f" {use}   load {three_digits(host.load_1)}{waits}", "")),
        bar_line("RAM", share(host.memory_used_bytes, total), memory, width, glyphs),
        bar_line("shm", share(host.shm_used_bytes, host.shm_total_bytes), shm, width, glyphs),
        ((f"disk {_rates(host.disk_read_bytes_per_s, host.disk_write_bytes_per_s, 'read', 'write')}", ""),
         (f"   net {_rates(host.net_rx_bytes_per_s, host.net_tx_bytes_per_s, 'in', 'out')}", "")),
    ]  # fmt: skip
    for row in graph_rows(history, taken or len(history), width, rows - len(lines), glyphs, zoom, marks):
        lines.append(((row, "accent"),))
    return lines[:rows]


def core_strip(fractions: Sequence[float], width: int, glyphs: Glyphs) -> str:
    """One column per CPU, or where there are more of them the mean of as many as share a column."""
    if len(fractions) <= width:
        return glyphs.graph(fractions, len(fractions))
    each = -(-len(fractions) // width)
    groups = [fractions[place : place + each] for place in range(0, len(fractions), each)]
    return glyphs.graph([sum(group) / len(group) for group in groups], len(groups))


def _in_one(host: HostSnapshot, width: int, glyphs: Glyphs) -> Line:
    total = host.memory_limit_bytes or host.memory_total_bytes
    figures = [
        f"load {three_digits(host.load_1)}",
        f"RAM {part_text(host.memory_used_bytes, total)}",
        f"shm {part_text(host.shm_used_bytes, host.shm_total_bytes)}",
        f"iowait {fixed_percent_text(host.iowait_fraction).strip()}",
        f"disk {rate_text(host.disk_read_bytes_per_s)}",
    ]
    use = fixed_percent_text(host.cpu_fraction).strip()
    cores = core_strip(host.per_cpu_fractions, max(1, min(32, width // 4)), glyphs)
    text = f" CPU {use}"
    for figure in figures:
        # Whole figures only: half a word is worse than none.
        added = f"  {figure}".replace("iB", "")
        if len(cores) + len(text) + len(added) <= width:
            text += added
    return ((cores, "accent"), (text, ""))


def _rates(first: float | None, second: float | None, first_word: str, second_word: str) -> str:
    return f"{rate_text(first)} {first_word}, {rate_text(second)} {second_word}"
