"""A snapshot as the JSON document of `monitor`: base units, null for unknown."""

from __future__ import annotations

from typing import Any

from gputune_tui.domain.plain import to_plain
from gputune_tui.domain.telemetry import NodeSnapshot

SCHEMA = 1


def node_document(snapshot: NodeSnapshot, problem: str | None = None) -> dict[str, Any]:
    """The document.

    Args:
        snapshot: what it holds.
        problem: why its numbers are old or lack the GPUs, unless the snapshot says so itself.
    """
    cpu = to_plain(snapshot.host)
    host = cpu.pop("hostname")
    processes = []
    for row in to_plain(snapshot)["processes"]:
        processes.append({"pid": row.pop("pid"), "gpu_index": row.pop("device_index"), **row})
    return {
        "schema": SCHEMA,
        "time": snapshot.time_s,
        "host": host,
        "driver": snapshot.driver,
        "cuda": snapshot.cuda,
        "problem": snapshot.problem or problem,
        "simulated": snapshot.simulated,
        "recorded": snapshot.recorded,
        "gpus": [{"uuid": device.uuid, **to_plain(device)} for device in snapshot.devices],
        "processes": processes,
        "process_note": snapshot.process_note,
        "cpu": cpu,
    }
