"""What holds for any snapshot of any backend."""

from __future__ import annotations

import json

from gputune_tui.domain.plain import from_plain, to_plain
from gputune_tui.domain.telemetry import DeviceSnapshot, NodeSnapshot


def check(found: NodeSnapshot) -> None:
    """Raise AssertionError where the snapshot contradicts itself or does not survive the pipe."""
    assert from_plain(NodeSnapshot, json.loads(json.dumps(to_plain(found)))) == found
    assert found.time_s > 1e9
    for position, device in enumerate(found.devices):
        check_device(device, position)
    indices = {device.index for device in found.devices}
    for row in found.processes:
        assert row.device_index is None or row.device_index in indices
        assert row.cpu_fraction is None or row.cpu_fraction >= 0
        row.command.encode("utf-8")
    host = found.host
    assert host.hostname
    assert host.effective_cpus > 0
    assert len(host.per_cpu_fractions) in (0, host.cpus)
    assert all(0 <= fraction <= 1 for fraction in host.per_cpu_fractions)
    assert (found.problem is None) or not found.devices


def check_device(device: DeviceSnapshot, position: int) -> None:
    assert device.index == position
    assert device.util_fraction is None or 0 <= device.util_fraction <= 1
    if device.memory_total_bytes is not None:
        assert 0 <= (device.memory_used_bytes or 0) <= device.memory_total_bytes
        assert 0 <= (device.memory_reserved_bytes or 0) <= device.memory_total_bytes
    assert device.power_w is None or 0 <= device.power_w < 10_000
    if device.state == "lost":
        assert (device.util_fraction, device.power_w, device.memory_used_bytes) == (None, None, None)
