"""What a trial process is told: the settings file that its parent writes."""

from __future__ import annotations

from dataclasses import dataclass, field

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef

JOB_VARIABLE = "GPUTUNE_JOB"
"""Environment variable with the path of the job file."""
RUN_VARIABLE = "GPUTUNE_RUN"
"""Environment variable with a whole job of kind "run" as JSON: nobody would clear a file away after it."""
EVENTS_VARIABLE = "GPUTUNE_EVENTS_FD"
"""Environment variable with the file descriptor number that takes the events."""
EVENTS_PLACE_VARIABLE = "GPUTUNE_EVENTS_AT"
"""Commands only: variable with `INODE PATH` of the same pipe, for processes whose launcher has closed it."""
RANKS_FOLDER = "ranks"
"""Beside the job file of a command: what its processes leave for each other, anew with each launch."""
CONTROL_VARIABLE = "GPUTUNE_CONTROL_FD"
"""Environment variable with the file descriptor number from which a paced trial reads its orders."""


@dataclass(frozen=True)
class MeasurePlan:
    """How long a trial measures. Block and warm-up rules: shared/research trial_engine.md sections 4 and 9."""

    blocks: int = 8
    """Timed blocks of one launch."""
    min_blocks: int = 4
    """Fewer only where `max_timed_s` is up; never fewer than two."""
    block_s: float = 0.5
    """A block takes whole steps until it has lasted this long."""
    extra_blocks: int = 8
    """At most so many more, to make up for blocks that other processes disturbed."""
    max_timed_s: float = 60.0
    """No further block starts after this much timed work, once `min_blocks` are there."""
    min_warmup_steps: int = 6
    max_warmup_steps: int = 30
    max_warmup_s: float = 30.0
    """The warm-up ends here even if step times have not settled; the prefetched batches are used up all the same."""
    breakdown_steps: int = 3
    """Instrumented steps after the timed blocks."""
    enough_below_samples_per_s: float | None = None
    """No further block is taken after `min_blocks` while every block was slower than this: it is clear by then."""


@dataclass(frozen=True)
class ScriptOrder:
    """What is done to a command beside running it."""

    injected: tuple[str, ...] = ()
    """Knobs that are set from outside; whatever else the settings say, the script does by itself."""
    site: str | None = None
    """The loader that feeds the training (`LoaderFacts.site`)."""
    counted_by: str | None = None
    """Where the samples of a step are counted (`ScriptFacts.counted_by`); None where they are declared."""


@dataclass(frozen=True)
class Claim:
    """What a configuration promises of a real job, which says once where it does not hold."""

    samples_per_s: float | None = None
    low_samples_per_s: float | None = None
    """The lower end of its interval."""
    torch: str | None = None


@dataclass(frozen=True)
class Job:
    """One order to a trial process."""

    kind: str
    """"trial" runs the workload; "inspect" imports it and tells what it is; "detect" runs a command for some steps and
    tells what it does by itself; "run" runs a command to its end under the settings."""
    workload: WorkloadRef
    device: str = "cpu"
    visible_device: str | None = None
    """UUID of the only GPU that the trial sees, as `cuda:0`: NVML and CUDA count devices differently."""
    settings: TrainSettings | None = None
    global_batch_size: int | None = None
    budget_bytes: int | None = None
    """The trial ends itself, typed OVER_BUDGET, before it takes more; None is unlimited."""
    fixed_overhead_bytes: int | None = None
    """Memory of a trial process before it builds its model, measured once per study; None on the first launch."""
    device_free_bytes: int | None = None
    """Free device memory just before launch (CUDA), from which the context's size follows."""
    seed: int = 0
    threads: int | None = None
    """Intra-op threads of a CPU trial."""
    paced: bool = False
    """Wait for an order before each block (interleaved comparison) instead of running the plan through."""
    plan: MeasurePlan = field(default_factory=MeasurePlan)
    host_memory_bytes: int | None = None
    """Memory of the host or, where it is less, the limit of its cgroup."""
    cold: bool = False
    """Drop the page cache of the files that the trial reads before each timed block."""
    script: ScriptOrder = field(default_factory=ScriptOrder)
    """Commands only."""
    claim: Claim | None = None
    """Of a job of kind "run"."""

    @property
    def runs_command(self) -> bool:
        """Whether the process is the user's own command, and no entry point of ours."""
        return bool(self.workload.command) and self.kind != "inspect"
