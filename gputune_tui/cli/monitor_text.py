"""A snapshot as text for stdout: a line per GPU, the CPU, and the processes."""

from __future__ import annotations

from gputune_tui.cli.tables import table
from gputune_tui.domain.telemetry import DeviceSnapshot, HostSnapshot, NodeSnapshot, ProcessSnapshot
from gputune_tui.units import UNKNOWN, bytes_text, duration_text, fixed_percent_text, part_text, rate_text, three_digits

FOREIGN = "(another namespace)"


def node_text(snapshot: NodeSnapshot, problem: str | None = None) -> str:
    """The compact view; `problem` is why the numbers are old or lack the GPUs."""
    about = [snapshot.host.hostname]
    about += [f"driver {snapshot.driver}"] if snapshot.driver else []
    about += [f"CUDA {snapshot.cuda}"] if snapshot.cuda else []
    about += ["SIMULATED"] if snapshot.simulated else []
    about += ["RECORDED"] if snapshot.recorded else []
    parts = [" · ".join(about)]
    parts += [text for text in (snapshot.problem or problem, snapshot.process_note) if text]
    if snapshot.devices:
        parts.append(_devices(snapshot))
    parts.append(_host(snapshot.host))
    if snapshot.processes:
        parts.append(_processes(snapshot))
    return "\n".join(parts)


def _devices(snapshot: NodeSnapshot) -> str:
    header = ("GPU", "name", "util", "memory", "temp", "power", "SM clock", "notes")
    rows = []
    for device in snapshot.devices:
        rows.append(_device(device))
        for instance in device.mig:
            place = f"{device.index}:{UNKNOWN if instance.gpu_instance is None else instance.gpu_instance}"
            memory = part_text(instance.memory_used_bytes, instance.memory_total_bytes)
            rows.append((place, instance.name or UNKNOWN, UNKNOWN, memory, "", "", "", "MIG"))
    return table(header, rows, left=frozenset({1, 7}))


def _device(device: DeviceSnapshot) -> tuple[str, ...]:
    name = (device.name or UNKNOWN).removeprefix("NVIDIA ")
    if device.state == "lost":
        return (str(device.index), name, "", "", "", "", "", "LOST: the driver no longer reaches it")
    celsius = UNKNOWN if device.temperature_c is None else f"{device.temperature_c:.0f} °C"
    clock = UNKNOWN if device.sm_clock_mhz is None else f"{device.sm_clock_mhz} MHz"
    notes = [*device.throttle]
    notes += ["stale"] if device.state == "stale" else []
    notes += ["unified memory"] if device.memory_is_unified else []
    return (
        str(device.index),
        name,
        fixed_percent_text(device.util_fraction).strip(),
        part_text(device.memory_used_bytes, device.memory_total_bytes),
        celsius,
        power_text(device),
        clock,
        ", ".join(notes),
    )


def power_text(device: DeviceSnapshot) -> str:
    """ "612/700 W"."""
    if device.power_w is None:
        return UNKNOWN
    limit = "" if device.power_limit_w is None else f"/{device.power_limit_w:.0f}"
    return f"{device.power_w:.0f}{limit} W"


def _host(host: HostSnapshot) -> str:
    total = host.memory_limit_bytes or host.memory_total_bytes
    cpus = three_digits(host.effective_cpus)
    limited = f" of {host.cpus}" if host.effective_cpus < host.cpus else ""
    return "   ".join(
        (
            f"CPU {fixed_percent_text(host.cpu_fraction).strip()} of {cpus}{limited} cores",
            f"load {three_digits(host.load_1)}",
            f"iowait {fixed_percent_text(host.iowait_fraction).strip()}",
            f"RAM {part_text(host.memory_used_bytes, total)}",
            f"shm {part_text(host.shm_used_bytes, host.shm_total_bytes)}",
            f"disk {rate_text(host.disk_read_bytes_per_s)} read",
            f"net {rate_text(host.net_rx_bytes_per_s)} in, {rate_text(host.net_tx_bytes_per_s)} out",
        )
    )


def _processes(snapshot: NodeSnapshot) -> str:
    header = ("GPU", "PID", "user", "type", "GPU-MEM", "SM %", "CPU %", "RSS", "time", "command")
    return table(header, [_process(row) for row in snapshot.processes], left=frozenset({2, 3, 9}))


def _process(row: ProcessSnapshot) -> tuple[str, ...]:
    device = "-" if row.device_index is None else str(row.device_index)
    place = device if row.gpu_instance is None else f"{device}:{row.gpu_instance}"
    if row.is_foreign:
        memory, share = bytes_text(row.gpu_memory_bytes), _percent(row.sm_fraction)
        return (place, str(row.pid), UNKNOWN, row.kind, memory, share, UNKNOWN, UNKNOWN, UNKNOWN, FOREIGN)
    return (
        place,
        str(row.pid),
        row.user or UNKNOWN,
        row.kind,
        bytes_text(row.gpu_memory_bytes),
        _percent(row.sm_fraction),
        _percent(row.cpu_fraction),
        bytes_text(row.resident_bytes),
        duration_text(row.running_s),
        ("trial: " if row.is_trial else "") + row.command,
    )


def _percent(fraction: float | None) -> str:
    return UNKNOWN if fraction is None else f"{fraction * 100:.0f}"
