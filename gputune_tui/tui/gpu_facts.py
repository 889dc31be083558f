"""All that is known of a GPU beyond its lines, for who looks at it closely."""

from __future__ import annotations

from collections.abc import Mapping

from gputune_tui.domain.telemetry import DeviceSnapshot
from gputune_tui.tui.widgets.lines import Line, Span
from gputune_tui.units import UNKNOWN, bytes_text, percent_text, rate_text, three_digits


def device_facts(device: DeviceSnapshot) -> Mapping[str, str]:
    """All that is known of a GPU beyond its lines, by name."""
    return {
        "UUID": device.uuid or UNKNOWN,
        "bus": device.pci_bus or UNKNOWN,
        "PCIe": _pcie(device),
        "rx/tx": f"{rate_text(device.pcie_rx_bytes_per_s)} / {rate_text(device.pcie_tx_bytes_per_s)}",
        "P-state": UNKNOWN if device.pstate is None else f"P{device.pstate}",
        "memory clock": UNKNOWN if device.memory_clock_mhz is None else f"{device.memory_clock_mhz} MHz",
        "memory busy": percent_text(device.memory_util_fraction),
        "reserved": bytes_text(device.memory_reserved_bytes),
        "slows at": UNKNOWN if device.slowdown_temperature_c is None else f"{device.slowdown_temperature_c:.0f} °C",
        "fan": percent_text(device.fan_fraction),
        "enc/dec": f"{percent_text(device.encoder_fraction)} / {percent_text(device.decoder_fraction)}",
        "ECC": _ecc(device),
        "persistence": _switch(device.persistence),
        "compute mode": device.compute_mode or UNKNOWN,
        "MIG": f"on, {len(device.mig)} instances" if device.mig_enabled else _switch(device.mig_enabled),
        "NVLink": _nvlink(device),
        "energy": UNKNOWN if device.energy_j is None else f"{three_digits(device.energy_j / 3.6e6)} kWh",
    }


def _pcie(device: DeviceSnapshot) -> str:
    if device.pcie_generation is None and device.pcie_width is None:
        return UNKNOWN
    now = f"{device.pcie_generation or UNKNOWN} x{device.pcie_width or UNKNOWN}"
    most = f"{device.pcie_max_generation or UNKNOWN} x{device.pcie_max_width or UNKNOWN}"
    return now if now == most else f"{now} of {most}"


def _ecc(device: DeviceSnapshot) -> str:
    if not device.ecc_enabled:
        return _switch(device.ecc_enabled)
    counts = [UNKNOWN if count is None else str(count) for count in (device.ecc_corrected, device.ecc_uncorrected)]
    return f"{counts[0]} corrected, {counts[1]} not"


def _nvlink(device: DeviceSnapshot) -> str:
    if not device.nvlink_links:
        return UNKNOWN if device.nvlink_links is None else "none"
    rates = f"{rate_text(device.nvlink_rx_bytes_per_s)} / {rate_text(device.nvlink_tx_bytes_per_s)}"
    return f"{device.nvlink_links} links, {rates}"


def _switch(value: bool | None) -> str:
    return UNKNOWN if value is None else "on" if value else "off"


def flowed(facts: Mapping[str, str], width: int) -> list[Line]:
    """Names and values one after the other, as many on a line as fit."""
    lines: list[Line] = []
    line: tuple[Span, ...] = ()
    used = 0
    for name, value in facts.items():
        size = len(name) + 1 + len(value) + 3
        if line and used + size > width:
            lines.append(line)
            line, used = (), 0
        line += ((f" {name} ", "dim"), (f"{value} ", ""))
        used += size
    return [*lines, line] if line else lines
