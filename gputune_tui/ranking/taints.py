"""What makes a figure doubtful, in words: the machine while it was measured, and what the trial itself does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from gputune_tui.domain.conditions import Conditions, GpuConditions, Neighbour, Pressure
from gputune_tui.domain.trial import SPARE_CPU_FRACTION, Block, Launch, Trial
from gputune_tui.ranking.drift import drift_between, drift_within
from gputune_tui.ranking.estimates import disturbed_blocks
from gputune_tui.units import bytes_text, percent_text

BUSY_BEFORE_FRACTION = 0.25
"""Of the CPUs used by others before the first block; less is told only where it went on in the blocks."""
MEMORY_PRESSURE_FRACTION = 0.05
CPU_PRESSURE_FRACTION = 0.25
"""Only where it is not known who used the CPUs; loader workers beyond the CPUs cause some of it themselves."""
IO_PRESSURE_FRACTION = 0.25
THROTTLED_FRACTION = 0.1
"""Of the readings; one in many is a peak."""
DENORMAL_FRACTION = 1e-3
"""Of the values: an operator works on 8 or 16 at once, and one of these among them makes it slow."""
LASTING_THROTTLE = ("power cap",)
"""What a card at full load does for ever: measuring again changes nothing."""


@dataclass(frozen=True)
class Taint:
    """One doubt."""

    text: str
    passing: bool
    """Another measurement may be free of it."""


def taints(trial: Trial) -> tuple[Taint, ...]:
    """All that is doubtful about a trial's figures."""
    launches = trial.launches
    known = [launch.conditions for launch in launches if launch.conditions is not None]
    found = [
        *_shared(known),
        *_disturbed(launches, known),
        *_pressure([block for launch in launches for block in launch.blocks]),
        *_gpu([c.gpu for c in known if c.gpu is not None]),
        *_drift(launches),
        *_own(launches, known),
    ]
    return tuple(found)


def neighbour_text(other: Neighbour) -> str:
    """ "pid 4711 (alice, 2.00 GiB, python train.py)"."""
    pid = f"pid {other.pid}" if other.pid is not None else "a process in another container"
    facts = [other.user or "unknown user", bytes_text(other.memory_bytes), _short(other.command)]
    return f"{pid} ({', '.join(filter(None, facts))})"


COMMAND_CHARACTERS = 40


def _short(command: str) -> str:
    return command if len(command) <= COMMAND_CHARACTERS else command[: COMMAND_CHARACTERS - 1] + "…"


def _shared(known: Sequence[Conditions]) -> list[Taint]:
    """The largest figure of each, over the launches."""
    others: dict[tuple[int | None, str | None], Neighbour] = {}
    for other in (other for conditions in known for other in conditions.others):
        before = others.get((other.pid, other.user))
        if before is None or (other.memory_bytes or 0) > (before.memory_bytes or 0):
            others[other.pid, other.user] = other
    if not others:
        return []
    on_gpu = any(conditions.gpu is not None for conditions in known)
    words = "; ".join(map(neighbour_text, others.values()))
    return [Taint(f"shared {'card' if on_gpu else 'device'}: measured beside {words}", True)]


def _disturbed(launches: Sequence[Launch], known: Sequence[Conditions]) -> list[Taint]:
    disturbed, used = disturbed_blocks(launches)
    if disturbed:
        text = f"other processes used the CPU in {disturbed} of {used} blocks: run it again when it is quiet"
        return [Taint(text, True)]
    before = [
        c.others_cpu_before_fraction
        for c in known
        if c.others_cpu_before_fraction is not None and (c.idle_cpu_before_fraction or 0.0) < SPARE_CPU_FRACTION
    ]
    busy = max(before, default=0.0)
    if busy > BUSY_BEFORE_FRACTION:
        return [Taint(f"other processes used {percent_text(busy)} of the CPUs just before it was timed", True)]
    unknown = [
        block.pressure.cpu_fraction
        for launch in launches
        for block in launch.blocks
        if block.others_cpu_fraction is None and block.pressure is not None and block.pressure.cpu_fraction is not None
    ]
    if unknown and fmean(unknown) > CPU_PRESSURE_FRACTION:
        return [Taint(f"processes waited for a CPU in {percent_text(fmean(unknown))} of the time", True)]
    return []


def _pressure(blocks: Sequence[Block]) -> list[Taint]:
    found = []
    memory = _mean_pressure(blocks, lambda pressure: pressure.memory_fraction)
    if memory is not None and memory > MEMORY_PRESSURE_FRACTION:
        found.append(Taint(f"the host was short of memory: {percent_text(memory)} of the time was lost to it", True))
    io = _mean_pressure(blocks, lambda pressure: pressure.io_fraction)
    if io is not None and io > IO_PRESSURE_FRACTION:
        found.append(Taint(f"disks were waited for in {percent_text(io)} of the time, by it or by others", True))
    return found


def _mean_pressure(blocks: Sequence[Block], of: Callable[[Pressure], float | None]) -> float | None:
    """Over the blocks; of the trial's own cgroup where that is told, since what others wait for costs it nothing."""
    told = [block.group_pressure or block.pressure for block in blocks]
    known = [value for pressure in told if pressure is not None and (value := of(pressure)) is not None]
    return fmean(known) if known else None


def _gpu(gpus: Sequence[GpuConditions]) -> list[Taint]:
    readings = sum(gpu.readings for gpu in gpus)
    reasons = dict.fromkeys(reason for gpu in gpus for reason in gpu.throttle)
    shares = {r: sum(gpu.throttle.get(r, 0.0) * gpu.readings for gpu in gpus) / readings for r in reasons}
    held = {reason: share for reason, share in shares.items() if share >= THROTTLED_FRACTION}
    if not held:
        return []
    clocks = [c for gpu in gpus for c in (gpu.sm_clock_low_mhz, gpu.sm_clock_high_mhz) if c is not None]
    hottest = max((gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None), default=None)
    facts = [f"{min(clocks)} to {max(clocks)} MHz" if clocks else "", f"{hottest:.0f} °C" if hottest else ""]
    words = ", ".join(f"{reason} in {percent_text(share)} of the time" for reason, share in held.items())
    text = f"throttled: {words}"
    if told := ", ".join(filter(None, facts)):
        text += f" ({told})"
    return [Taint(text, any(reason not in LASTING_THROTTLE for reason in held))]


def _drift(launches: Sequence[Launch]) -> list[Taint]:
    changes = [change for launch in launches if (change := drift_within(launch.blocks)) is not None]
    if changes:
        return [Taint(f"the machine {_change_text(max(changes, key=abs))} while it was measured", True)]
    between = drift_between(launches)
    return [] if between is None else [Taint(f"the machine {_change_text(between)} between its launches", True)]


def _change_text(change: float) -> str:
    return f"got {percent_text(abs(change))} {'faster' if change > 0 else 'slower'}"


def _own(launches: Sequence[Launch], known: Sequence[Conditions]) -> list[Taint]:
    """What measuring again does not change."""
    found = []
    new = [sum(block.new_shapes or 0 for block in launch.blocks[len(launch.blocks) // 2 :]) for launch in launches]
    if any(new):
        text = f"unstable, batch shapes still changing: {max(new)} were new in the later half of the timed blocks"
        found.append(Taint(text, False))
    denormal = max((c.denormal_fraction for c in known if c.denormal_fraction is not None), default=0.0)
    if denormal >= DENORMAL_FRACTION:
        text = f"{percent_text(denormal)} of its values are denormals, at which a CPU is slow: try flush_denormal=true"
        found.append(Taint(text, False))
    return found
