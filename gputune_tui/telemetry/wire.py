"""A snapshot as a line between the sampling process and its client: the same code at both ends, types are trusted."""

from __future__ import annotations

import json
from typing import Any

from gputune_tui.domain.telemetry import DeviceSnapshot, HostSnapshot, MigSnapshot, NodeSnapshot, ProcessSnapshot
from gputune_tui.errors import ProtocolError


def encode(snapshot: NodeSnapshot) -> bytes:
    """One line, its end included."""
    # The encoder turns a dataclass into its fields three times as fast as code of ours could.
    return json.dumps(snapshot, default=vars, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> NodeSnapshot:
    """The snapshot of a line.

    Raises:
        ProtocolError: it is none: no JSON, or other fields.
    """
    try:
        found: dict[str, Any] = json.loads(line)
        found["host"] = HostSnapshot(**_with_tuples(found["host"]))
        found["devices"] = tuple(_device(device) for device in found["devices"])
        found["processes"] = tuple(ProcessSnapshot(**process) for process in found["processes"])
        return NodeSnapshot(**_with_tuples(found))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ProtocolError(f"a line of the sampling process is no snapshot: {error}") from None


def _device(fields: dict[str, Any]) -> DeviceSnapshot:
    if fields.get("mig"):
        fields["mig"] = [MigSnapshot(**instance) for instance in fields["mig"]]
    return DeviceSnapshot(**_with_tuples(fields))


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    for name, value in fields.items():
        if isinstance(value, list):
            fields[name] = tuple(value)
    return fields
