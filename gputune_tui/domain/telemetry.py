"""What the panels show: one frozen snapshot of the node per tick. Unknown is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DeviceState = Literal["live", "lost", "stale"]
"""live: these are its values now; lost: the driver cannot reach it; stale: it has not answered, the values are old."""


@dataclass(frozen=True)
class MigSnapshot:
    """One MIG instance: a slice of a GPU with memory of its own."""

    gpu_instance: int | None
    compute_instance: int | None
    uuid: str | None
    name: str | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True)
class DeviceSnapshot:
    """One GPU. A lost one keeps its slot, UUID and name, and has no values."""

    index: int
    """NVML's, as nvidia-smi counts."""
    uuid: str | None
    name: str | None
    state: DeviceState
    util_fraction: float | None
    """Share of the driver's last window (1/6 to 1 s) in which any kernel ran; not how full the GPU was."""
    memory_used_bytes: int | None
    """Without the reserved part, where the driver tells it apart."""
    memory_total_bytes: int | None
    memory_reserved_bytes: int | None
    """Kept by the driver and firmware; None where the driver counts it as used."""
    power_w: float | None
    power_limit_w: float | None
    """The enforced one."""
    temperature_c: float | None
    sm_clock_mhz: int | None
    throttle: tuple[str, ...]
    """Why the clocks are held down under load, in words; idling is no reason."""
    stale_s: float | None = None
    """Since it has not answered; None while it does, or where that is not known."""
    pci_bus: str | None = None
    slowdown_temperature_c: float | None = None
    """At which the driver begins to slow the clocks."""
    memory_is_unified: bool = False
    """The GPU has no memory of its own: the figures are the machine's, used being what is not available."""
    memory_util_fraction: float | None = None
    """Share of the same window in which its memory was read or written."""
    memory_clock_mhz: int | None = None
    pstate: int | None = None
    """0 is the fastest."""
    pcie_rx_bytes_per_s: float | None = None
    """To the GPU, over the last two seconds."""
    pcie_tx_bytes_per_s: float | None = None
    mig_enabled: bool | None = None
    mig: tuple[MigSnapshot, ...] = ()
    ecc_enabled: bool | None = None
    ecc_uncorrected: int | None = None
    """Errors since the driver was loaded."""
    ecc_corrected: int | None = None
    persistence: bool | None = None
    compute_mode: str | None = None
    pcie_generation: int | None = None
    """This and what follows is read only while somebody looks at it (`SamplerSettings.expanded`)."""
    pcie_width: int | None = None
    pcie_max_generation: int | None = None
    pcie_max_width: int | None = None
    fan_fraction: float | None = None
    encoder_fraction: float | None = None
    decoder_fraction: float | None = None
    nvlink_links: int | None = None
    nvlink_rx_bytes_per_s: float | None = None
    """Of all links together."""
    nvlink_tx_bytes_per_s: float | None = None
    energy_j: float | None = None
    """Since the driver was loaded."""


@dataclass(frozen=True)
class ProcessSnapshot:
    """One process on one GPU, or one of ours on none."""

    pid: int
    """As the driver tells it: in a container it may be the host's number, which then names nothing here."""
    device_index: int | None
    """None for a trial's process that is on no GPU."""
    user: str | None
    gpu_memory_bytes: int | None
    cpu_fraction: float | None
    """Of one CPU: 2.0 is two CPUs busy."""
    resident_bytes: int | None
    command: str
    """The arguments joined by spaces, control characters and all; empty where it cannot be read."""
    is_trial: bool = False
    """Whether it belongs to a trial of this program."""
    started: int | None = None
    """Clock ticks after boot: with the number it tells one process from another."""
    parent_pid: int | None = None
    running_s: float | None = None
    """Since it was started."""
    kind: str = ""
    """What it does on the GPU: C computes, G draws, M computes through MPS, joined by +."""
    sm_fraction: float | None = None
    """Share of the last two seconds in which its kernels ran; those of all processes do not add up to the GPU's."""
    gpu_instance: int | None = None
    """On a GPU that is cut by MIG."""
    is_foreign: bool = False
    """The number belongs to another PID namespace (or may have just ended): nothing here can be found or signalled by
    it."""
    is_gone: bool = False
    """It ended since the driver listed it."""


@dataclass(frozen=True)
class HostSnapshot:
    """The host as this process meets it: the cgroup's limits where there are any, else the machine's."""

    hostname: str
    cpu_fraction: float | None
    """Use of `effective_cpus`, 0 to 1: the cgroup's where a quota limits it, else that of the CPUs allowed by affinity
    (all of the machine's, if it is not restricted). None until two readings exist."""
    per_cpu_fractions: tuple[float, ...]
    """The machine's CPUs, whoever uses them; empty until two readings exist."""
    effective_cpus: float
    cpus: int
    """CPUs of the machine that are online."""
    load_1: float | None
    """The machine's load average of one minute."""
    memory_used_bytes: int | None
    """The cgroup's use (less reclaimable page cache) where it has a limit, else the machine's total less available."""
    memory_total_bytes: int | None
    """The machine's."""
    memory_limit_bytes: int | None
    """The tightest cgroup limit, None where there is none."""
    shm_used_bytes: int | None
    shm_total_bytes: int | None
    iowait_fraction: float | None
    """Of the machine's CPU time, waiting for disks."""
    disk_read_bytes_per_s: float | None = None
    """Of the machine's local disks together; network file systems do not count."""
    disk_write_bytes_per_s: float | None = None
    net_rx_bytes_per_s: float | None = None
    """Of the machine's network cards together, or of all interfaces but the loopback where no card is seen."""
    net_tx_bytes_per_s: float | None = None


@dataclass(frozen=True)
class NodeSnapshot:
    """Everything at one moment."""

    time_s: float
    """Wall clock, seconds since the epoch, just before the reading began: nothing that is said to be from now is older,
    but for what a driver that is late told before."""
    host: HostSnapshot
    driver: str | None
    cuda: str | None
    """The newest CUDA version that the driver supports."""
    devices: tuple[DeviceSnapshot, ...]
    processes: tuple[ProcessSnapshot, ...]
    problem: str | None
    """Why there is no GPU, one sentence with cause and remedy; None when there are GPUs or they are not yet known."""
    simulated: bool = False
    recorded: bool = False
    """Played back: `time_s` and all else are of the time of the recording."""
    process_note: str | None = None
    """Why the list of processes is not whole, one sentence."""
    listed_s: tuple[float | None, ...] = ()
    """By device, the wall clock just before its list of processes was asked for, None before the first; empty where all
    lists are of `time_s`."""


@dataclass(frozen=True)
class SamplerSettings:
    """What the collector orders from the sampling process, always whole: one JSON line per change."""

    interval_s: float = 1.0
    quiet: bool = False
    """A timed block runs: only the cheapest readings; processes stay as they were."""
    gpus: bool = True
    """Whether the driver may be asked at all; off for a while after it ended the process."""
    expanded: tuple[int, ...] = ()
    """Indices of the GPUs that somebody looks at closely."""
    expand_all: bool = False
    list_processes: bool = False
    """Who is on the GPUs is read at every tick, in quiet too: a trial's memory is held against its budget by it."""
