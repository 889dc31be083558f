"""A trial and what it measured: states, reasons of failure, raw blocks, peaks and the step breakdown."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gputune_tui.domain.conditions import Conditions, Pressure
from gputune_tui.domain.data_reads import DataReads
from gputune_tui.domain.settings import TrainSettings


class TrialState(str, Enum):
    """Where a trial stands (Optuna's words)."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"

    @property
    def is_finished(self) -> bool:
        """True for COMPLETE, PRUNED and FAIL."""
        return self in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


class FailureReason(str, Enum):
    """Why a trial failed; the message beside it is in the user's words."""

    DEVICE_OOM = "DEVICE_OOM"
    OVER_BUDGET = "OVER_BUDGET"
    HOST_OOM = "HOST_OOM"
    SHM = "SHM"
    TIMEOUT = "TIMEOUT"
    STALLED = "STALLED"
    INVALID = "INVALID"
    NON_FINITE = "NON_FINITE"
    NO_DATA = "NO_DATA"
    DISK_FULL = "DISK_FULL"
    FILE_LIMIT = "FILE_LIMIT"
    CRASH = "CRASH"
    KILLED = "KILLED"
    ENDED_EARLY = "ENDED_EARLY"
    STALE = "STALE"

    @property
    def says_nothing_of_the_settings(self) -> bool:
        """True where the trial was ended from outside: a resumed study runs it again."""
        return self in (FailureReason.KILLED, FailureReason.STALE, FailureReason.DISK_FULL)


@dataclass(frozen=True)
class Failure:
    """Why a trial is FAIL."""

    reason: FailureReason
    message: str
    """One sentence; for a fault in the user's code their exception, file and line."""
    log: str | None = None
    """Path of the trial's log."""
    in_workload: bool = False
    """True where the fault is the user's own code, so that other settings are likely to meet it too."""


OTHERS_CPU_FRACTION = 0.05
"""More than this disturbs: a busy process beside a two-thread step slowed it 3.2 times (trial_engine.md, section 4)."""
SPARE_CPU_FRACTION = 0.10
"""With more idle than this there was room for both."""


@dataclass(frozen=True)
class Block:
    """Some whole optimizer steps timed together."""

    samples: int
    """Samples counted in the block, not planned."""
    steps: int
    """Optimizer steps; skipped ones (fp16) are not counted."""
    elapsed_s: float
    cpu_s: float | None = None
    """CPU time of the trial's main process during the block."""
    involuntary_switches: int | None = None
    others_cpu_fraction: float | None = None
    """Of the trial's CPUs, what processes that are not its own used during the block."""
    idle_cpu_fraction: float | None = None
    steal_fraction: float | None = None
    """Of the trial's CPUs, what the host of this virtual machine gave to others."""
    pressure: Pressure | None = None
    """Of the machine, over the block or, where it was shorter, the two seconds up to its end."""
    group_pressure: Pressure | None = None
    """The same of the trial's own cgroup."""
    new_shapes: int | None = None
    """Kinds of batches, by the shapes of their tensors, that the trial had not met before this block."""

    @property
    def is_disturbed(self) -> bool:
        """Somebody else wanted the CPUs, and there was none to spare."""
        crowded = self.idle_cpu_fraction is not None and self.idle_cpu_fraction < SPARE_CPU_FRACTION
        others = self.others_cpu_fraction or 0.0
        return (crowded and others > OTHERS_CPU_FRACTION) or (self.steal_fraction or 0.0) > OTHERS_CPU_FRACTION

    @property
    def samples_per_s(self) -> float:
        """Throughput of this block."""
        return self.samples / self.elapsed_s


@dataclass(frozen=True)
class StepBreakdown:
    """Seconds per optimizer step by phase, measured in instrumented steps; the parts sum to `total_s`."""

    data_wait_s: float | None
    copy_s: float | None
    forward_s: float | None
    backward_s: float | None
    optimizer_s: float | None
    communication_s: float | None
    other_s: float | None
    total_s: float


@dataclass(frozen=True)
class MemoryPeaks:
    """Peaks over the whole trial, warm-up included; None where the device does not tell."""

    peak_allocated_bytes: int | None = None
    """Live tensors (CUDA allocator)."""
    peak_reserved_bytes: int | None = None
    """What the CUDA allocator held."""
    device_peak_bytes: int | None = None
    """What the device shows for the process; this is held against the budget."""
    host_peak_bytes: int | None = None
    """Process tree, loader workers included; what its processes share counts once."""
    alloc_retries: int | None = None


@dataclass(frozen=True)
class PhasePeak:
    """How far the device's peak had risen in a phase of the trial; phases that did not raise it have none."""

    phase: str
    """warm_up, largest_batch, evaluation, measure, ... (`domain.protocol.Phase`)."""
    device_peak_bytes: int
    """The high-water mark at its end."""


@dataclass(frozen=True)
class GuardRecord:
    """Did the trial compute a training step: losses and gradient norms of the first optimizer steps, and skips."""

    losses: tuple[float, ...] = ()
    """Item-weighted mean loss of each of the first steps, before its update."""
    gradient_norms: tuple[float, ...] = ()
    """Global L2 norm of all gradients at these steps, unscaled."""
    skipped_steps: int = 0
    """Steps that the gradient scaler left out."""
    non_finite_steps: int = 0
    """Steps whose loss was NaN or infinite."""
    parameters_changed: bool | None = None
    """False where no parameter moved over the whole trial."""
    loss_noise_fraction: float | None = None
    """Standard deviation of one step's loss over its mean under other seeds; 0 where nothing in the step is random,
    None where the data could not be drawn again."""


@dataclass(frozen=True)
class Launch:
    """What one launch of a setting measured."""

    blocks: tuple[Block, ...]
    step_times_s: tuple[float, ...]
    """Each timed optimizer step."""
    warmup_steps: int
    """Optimizer steps before the first timed block."""
    memory: MemoryPeaks
    breakdown: StepBreakdown | None = None
    guard: GuardRecord | None = None
    notes: tuple[str, ...] = ()
    """What the trial observed in words, e.g. "BatchNorm sees micro-batch 8"."""
    conditions: Conditions | None = None
    """What surrounded it; None of launches that were stored before this was looked at."""
    phase_peaks: tuple[PhasePeak, ...] = ()
    """In the order of the phases."""
    data: DataReads | None = None
    round: str | None = None
    """Launches of several trials with one round ran one right after the other: they are compared in pairs. Of a
    trial's launches with the same round the last counts there. None outside of a race. It reads RACE.NUMBER, and where
    that round of the race was begun anew RACE.NUMBER.ATTEMPT. A launch that failed in its round has no blocks."""


@dataclass(frozen=True)
class Trial:
    """One setting of a study: waiting, running or ended."""

    id: int
    settings: TrainSettings
    state: TrialState
    failure: Failure | None = None
    launches: tuple[Launch, ...] = ()
    partial_memory: MemoryPeaks | None = None
    """Peaks of a failed trial up to its end: a lower bound of what it needs."""
    budget_bytes: int | None = None
    """The cap under which it ran."""
    started_at: float | None = None
    """Unix time, for display alone."""
    elapsed_s: float | None = None
    """Wall time from launch to the end of its last process."""
    host_budget_bytes: int | None = None
    """The host's budget under which it ran; None was unlimited."""

    @property
    def memory(self) -> MemoryPeaks | None:
        """The largest peak of each kind over all launches; of a failed trial what was seen of it."""
        if not self.launches:
            return self.partial_memory
        return largest_peaks([launch.memory for launch in self.launches])


def largest_peaks(peaks: list[MemoryPeaks]) -> MemoryPeaks:
    """The largest value of each field; None where no launch told it."""

    def largest(name: str) -> int | None:
        known = [value for peak in peaks if (value := getattr(peak, name)) is not None]
        return max(known) if known else None

    return MemoryPeaks(**{name: largest(name) for name in MemoryPeaks.__dataclass_fields__})
