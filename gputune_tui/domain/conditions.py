"""What surrounded a launch: pressure on the host, the GPU's clocks, and who else used the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pressure:
    """Share of the time in which at least one task waited for it: the "some" lines of the kernel's pressure stall
    information (Documentation/accounting/psi.rst); None where the kernel does not tell."""

    cpu_fraction: float | None = None
    memory_fraction: float | None = None
    """Waiting for memory to be reclaimed or read back from swap."""
    io_fraction: float | None = None


@dataclass(frozen=True)
class Neighbour:
    """A process of somebody else on the device."""

    pid: int | None
    """None where it is in another PID namespace."""
    user: str | None
    memory_bytes: int | None
    """What it holds of the device: of a GPU as the driver tells it, of the CPU its resident memory."""
    command: str = ""


@dataclass(frozen=True)
class GpuConditions:
    """The GPU over the readings that were taken while blocks were timed."""

    readings: int
    sm_clock_low_mhz: int | None = None
    sm_clock_high_mhz: int | None = None
    temperature_c: float | None = None
    """The highest."""
    power_w: float | None = None
    """The highest."""
    throttle: Mapping[str, float] = field(default_factory=dict)
    """What held the clocks down, in words, and in which share of the readings."""


@dataclass(frozen=True)
class Conditions:
    """What surrounded one launch, as far as it is told for the launch and not block by block."""

    others_cpu_before_fraction: float | None = None
    """Of the trial's CPUs, what processes that are not its own used from its start to its first timed block."""
    idle_cpu_before_fraction: float | None = None
    denormal_fraction: float | None = None
    """Of the values that one training step computes on a CPU, those so close to zero that the CPU is slow at them
    (subnormal, and not zero); None where it was not looked at."""
    others: tuple[Neighbour, ...] = ()
    """Who else computed on the device meanwhile, as far as that is told; empty where it had the device to itself."""
    gpu: GpuConditions | None = None
    """None on a CPU, and where the driver told nothing."""
