"""What surrounded each launch of a trial, as it stands in the JSON documents."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from gputune_tui.domain.conditions import Conditions, Pressure
from gputune_tui.domain.plain import to_plain
from gputune_tui.domain.trial import Launch
from gputune_tui.ranking.drift import drift_within


def launch_entry(launch: Launch) -> dict[str, Any]:
    """Means over the launch's timed blocks, and what is told for the launch; null for unknown."""
    blocks = launch.blocks
    switches = [b.involuntary_switches / b.elapsed_s for b in blocks if b.involuntary_switches is not None]
    cpu = [block.cpu_s / block.elapsed_s for block in blocks if block.cpu_s is not None]
    shapes = [block.new_shapes for block in blocks if block.new_shapes is not None]
    return {
        "cpu_over_wall": _mean(cpu),
        "involuntary_switches_per_s": _mean(switches),
        "others_cpu_fraction": _mean([b.others_cpu_fraction for b in blocks]),
        "steal_fraction": _mean([b.steal_fraction for b in blocks]),
        "disturbed_blocks": sum(block.is_disturbed for block in blocks),
        "pressure": _pressure([block.pressure for block in blocks]),
        "group_pressure": _pressure([block.group_pressure for block in blocks]),
        "new_shapes": sum(shapes) if shapes else None,
        "drift_fraction": drift_within(blocks),
        **to_plain(launch.conditions or Conditions()),
    }


def _mean(values: list[float | None] | list[float]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _pressure(told: list[Pressure | None]) -> dict[str, float | None] | None:
    known = [pressure for pressure in told if pressure is not None]
    if not known:
        return None
    return {name: _mean([getattr(pressure, name) for pressure in known]) for name in Pressure.__dataclass_fields__}
