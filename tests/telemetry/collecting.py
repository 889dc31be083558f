"""What tests of a collector over any driver do with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gputune_tui.domain.telemetry import NodeSnapshot
from gputune_tui.telemetry.collector import Collector
from tests.telemetry.contract import check
from tests.telemetry.snapshots import no_longer_runs, until


def close_all(collectors: Iterable[Collector]) -> None:
    """Close them; none of their processes may be left."""
    for collector in collectors:
        pid = collector.pid
        collector.close()
        assert pid is None or no_longer_runs(pid)


def find(collector: Collector, wanted: Callable[[NodeSnapshot], object]) -> NodeSnapshot:
    """The first snapshot like that."""

    def ask() -> NodeSnapshot | None:
        found = collector.poll()
        if found is None:
            return None
        check(found)
        return found if wanted(found) else None

    return until(ask)


def states(found: NodeSnapshot) -> list[str]:
    return [device.state for device in found.devices]
