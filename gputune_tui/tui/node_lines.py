"""The node's numbers as lines: GPUs, the CPU with memory, and the processes on the GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from gputune_tui.domain.telemetry import DeviceSnapshot, HostSnapshot, NodeSnapshot, ProcessSnapshot
from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.widgets.lines import Line, fitted, wrapped
from gputune_tui.units import UNKNOWN, bytes_text, fixed_percent_text, three_digits

BUSY_FRACTION, FULL_FRACTION = 0.75, 0.90
"""From here on a bar is coloured: a busy GPU is good news, full memory is not."""
LABEL = 4


def device_title(device: DeviceSnapshot) -> str:
    """Index and model."""
    return f"{device.index} {device.name or 'unknown GPU'}"


def device_lines(
    device: DeviceSnapshot, history: Sequence[float | None], width: int, glyphs: Glyphs, budget_bytes: int | None
) -> list[Line]:
    """One GPU in full: utilisation, memory with the budget's mark, what it draws, and its recent past."""
    if device.state == "lost":
        return [(("LOST: the driver no longer reaches this GPU; the others go on", "bad"),)]
    memory = part_text(device.memory_used_bytes, device.memory_total_bytes)
    lines = [
        _bar_line("UTL", device.util_fraction, fixed_percent_text(device.util_fraction), width, glyphs),
        _bar_line("MEM", _memory_fraction(device), memory, width, glyphs, _mark(device, budget_bytes)),
        _vitals(device),
    ]
    if device.state == "stale":
        lines = [tuple((text, "dim") for text, _ in line) for line in lines]
    return [*lines, ((glyphs.graph(history, width), "accent"),)]


def device_row(device: DeviceSnapshot, width: int, glyphs: Glyphs, budget_bytes: int | None) -> Line:
    """One GPU in one line, for narrow screens and many GPUs."""
    head = f"{device.index:>2} "
    if device.state == "lost":
        return ((head, ""), ("LOST: the driver no longer reaches this GPU", "bad"))
    bar = max(6, min(24, (width - 56) // 2))
    used = part_text(device.memory_used_bytes, device.memory_total_bytes)
    kind = "dim" if device.state == "stale" else ""
    utilisation = glyphs.bar(device.util_fraction, bar)
    memory = glyphs.bar(_memory_fraction(device), bar, _mark(device, budget_bytes))
    return (
        (head, kind),
        (utilisation, kind or _load_kind(device.util_fraction)),
        (fixed_percent_text(device.util_fraction) + " ", kind),
        (memory, kind or _full_kind(_memory_fraction(device))),
        (f" {used} ", kind),
        *_vitals(device, kind),
    )


def device_cell(device: DeviceSnapshot, glyphs: Glyphs) -> str:
    """One GPU in two or three columns, for the strip above the tuning pane."""
    if device.state == "lost":
        return f"{device.index}x"
    level = glyphs.graph([device.util_fraction], 1) if device.util_fraction is not None else "·"
    return f"{device.index}{level}"


def host_title(host: HostSnapshot) -> tuple[str, str]:
    """Name and value of the CPU panel."""
    limited = host.effective_cpus < host.cpus
    cpus = f"{three_digits(host.effective_cpus)} of {host.cpus} cores (limited)" if limited else f"{host.cpus} cores"
    return f"CPU {cpus}", fixed_percent_text(host.cpu_fraction).strip()


def host_lines(host: HostSnapshot, history: Sequence[float | None], width: int, glyphs: Glyphs) -> list[Line]:
    """Load of the CPUs, memory and shared memory."""
    total = host.memory_limit_bytes or host.memory_total_bytes
    memory = part_text(host.memory_used_bytes, total)
    shm = part_text(host.shm_used_bytes, host.shm_total_bytes)
    load = three_digits(host.load_1)
    cores = glyphs.graph(host.per_cpu_fractions, min(len(host.per_cpu_fractions), max(1, width - 34)))
    waits = "" if host.iowait_fraction is None else f"   iowait {fixed_percent_text(host.iowait_fraction).strip()}"
    return [
        ((cores, "accent"), (f"   load {load}{waits}", "")),
        _bar_line("RAM", _share(host.memory_used_bytes, total), memory, width, glyphs),
        _bar_line("shm", _share(host.shm_used_bytes, host.shm_total_bytes), shm, width, glyphs),
        ((glyphs.graph(history, width), "accent"),),
    ]


ROOMY = 70
"""From this width on a process has all its columns; below, its user and its resident memory make room."""


def process_lines(snapshot: NodeSnapshot, width: int, glyphs: Glyphs) -> list[Line]:
    """The processes with a header; without GPUs there is no column for their memory."""
    has_gpus, is_roomy = bool(snapshot.devices), width >= ROOMY
    names = f"  {'GPU':>3} " if has_gpus else "  "
    names += f"{'PID':>7} " + (f"{'USER':<8} " if is_roomy else "")
    names += (f"{'GPU-MEM':>8} " if has_gpus else "") + f"{'CPU%':>5} "
    names += f"{'RSS':>9} " if is_roomy or not has_gpus else ""
    lines: list[Line] = [((names + "COMMAND", "dim"),)]
    return lines + [_process_line(process, has_gpus, is_roomy, glyphs) for process in snapshot.processes]


def _process_line(process: ProcessSnapshot, has_gpus: bool, is_roomy: bool, glyphs: Glyphs) -> Line:
    mark = glyphs.cursor if process.is_trial else " "
    device = "-" if process.device_index is None else str(process.device_index)
    cpu = UNKNOWN if process.cpu_fraction is None else f"{process.cpu_fraction * 100:.0f}"
    figures = f"{mark} {device:>3} " if has_gpus else f"{mark} "
    figures += f"{process.pid:>7} " + (f"{fitted(process.user or UNKNOWN, 8)} " if is_roomy else "")
    figures += (f"{bytes_text(process.gpu_memory_bytes):>8} " if has_gpus else "") + f"{cpu:>5} "
    figures += f"{bytes_text(process.resident_bytes):>9} " if is_roomy or not has_gpus else ""
    command = process.command or "(not to be read: another namespace, or it has ended)"
    return ((figures, "accent" if process.is_trial else ""), (command, "" if process.command else "dim"))


def problem_lines(snapshot: NodeSnapshot, width: int) -> list[Line]:
    """Why there are no GPU panels."""
    return [] if snapshot.problem is None else wrapped(snapshot.problem, width, "warn")


def header(snapshot: NodeSnapshot | None, age_s: float | None, paused: bool) -> list[str]:
    """What the node is, in parts that may be joined as far as there is room."""
    if snapshot is None:
        return ["reading the node"]
    parts = ["SIMULATED"] if snapshot.simulated else []
    parts.append(snapshot.host.hostname)
    if snapshot.driver:
        parts.append(f"driver {snapshot.driver}")
    if snapshot.cuda:
        parts.append(f"CUDA {snapshot.cuda}")
    parts.append("paused" if paused else liveness(age_s))
    return parts


STALE_S = 4.0
"""Older numbers are called stale: several of the sampler's intervals."""


def liveness(age_s: float | None) -> str:
    """How old the numbers are, in words."""
    if age_s is None:
        return "no numbers yet"
    return f"stale {age_s:.0f} s" if age_s > STALE_S else "live"


def _bar_line(
    label: str, fraction: float | None, value: str, width: int, glyphs: Glyphs, mark: float | None = None
) -> Line:
    room = width - LABEL - len(value) - 1
    if room < 8:
        return ((f"{label} {value.strip()}", ""),)
    kind = _load_kind(fraction) if label == "UTL" else _full_kind(fraction)
    return ((f"{label} ", "dim"), (glyphs.bar(fraction, room, mark), kind), (f" {value}", ""))


def _vitals(device: DeviceSnapshot, kind: str = "") -> Line:
    celsius = UNKNOWN if device.temperature_c is None else f"{device.temperature_c:.0f}"
    power = UNKNOWN if device.power_w is None else f"{device.power_w:.0f}"
    limit = "" if device.power_limit_w is None else f"/{device.power_limit_w:.0f}"
    clock = UNKNOWN if device.sm_clock_mhz is None else f"{device.sm_clock_mhz}"
    words = f"{celsius} °C  {power}{limit} W  {clock} MHz"
    line: Line = ((words, kind),)
    if device.state == "stale":
        line += (("  stale", "warn"),)
    if device.throttle:
        line += (("  " + ", ".join(device.throttle), "warn"),)
    return line


def _memory_fraction(device: DeviceSnapshot) -> float | None:
    return _share(device.memory_used_bytes, device.memory_total_bytes)


def part_text(part_bytes: int | None, whole_bytes: int | None) -> str:
    """ "58.0/140 GiB"; both units where they differ."""
    part, whole = bytes_text(part_bytes), bytes_text(whole_bytes)
    same = part.split(" ")[-1] == whole.split(" ")[-1] and " " in part
    return f"{part.split(' ')[0]}/{whole}" if same else f"{part} / {whole}"


def _mark(device: DeviceSnapshot, budget_bytes: int | None) -> float | None:
    return _share(budget_bytes, device.memory_total_bytes)


def _share(part: int | None, whole: int | None) -> float | None:
    return part / whole if part is not None and whole else None


def _load_kind(fraction: float | None) -> str:
    return "good" if fraction is not None and fraction >= BUSY_FRACTION else ""


def _full_kind(fraction: float | None) -> str:
    if fraction is None or fraction < BUSY_FRACTION:
        return ""
    return "bad" if fraction >= FULL_FRACTION else "warn"
