"""What the engine can be told: plain, serialisable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gputune_tui.domain.job import MeasurePlan
from gputune_tui.domain.knobs import KnobValue
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef


@dataclass(frozen=True)
class StudyConfig:
    """Everything that decides what a study is and how its trials are held."""

    workload: WorkloadRef
    device: str | None = None
    """"cpu", "cuda", "cuda:1", a GPU's UUID; None takes a usable GPU, else the CPU."""
    budget: str | None = None
    """A size or a percentage of the total; None is 90 % of what is free."""
    host_budget: str | None = None
    global_batch_size: int | None = None
    """None takes the workload's own."""
    baseline: Mapping[str, KnobValue] = field(default_factory=dict)
    study: str | None = None
    """Directory; None is the default place."""
    python: str | None = None
    seed: int = 0
    stall_timeout_s: float = 120.0
    trial_timeout_s: float | None = None
    share: bool = False
    """Measure although somebody else measures or computes on the device."""
    cold: bool = False
    """Drop the page cache of the files that trials read before each timed block."""
    plan: MeasurePlan = field(default_factory=MeasurePlan)
    detects: bool = True
    """Commands only: run the script for some steps as it is, to know what it does by itself. Without, only knobs that
    it is told can differ, and its samples must be declared."""


@dataclass(frozen=True)
class Search:
    """Run the distinct cells of a space."""

    space: str | None = None
    """As `--space`; None is the default space of the device."""
    sampler: str = "grid"
    max_time_s: float | None = None
    race: bool = False
    """Race the cells in place of running each to the same length; the order is then random, whatever `sampler` is."""
    margin_fraction: float = 0.03
    """Of a race: differences within it are a tie."""


@dataclass(frozen=True)
class RunTrial:
    """Run one setting."""

    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    """As `--set`: over the baseline."""
    launches: int = 1


@dataclass(frozen=True)
class RunSettings:
    """Run one complete setting, whatever the baseline says (verify)."""

    settings: TrainSettings
    launches: int = 1


@dataclass(frozen=True)
class Compare:
    """Interleaved comparison of two settings."""

    a: Mapping[str, KnobValue]
    b: Mapping[str, KnobValue]
    margin_fraction: float = 0.03
    max_time_s: float | None = None


@dataclass(frozen=True)
class MeasureAgain:
    """Measure trials of the study again; the new launches take the place of the old ones, whatever they tell."""

    trial_ids: tuple[int, ...] = ()
    """Empty: all rows that something disturbed which may be over by now."""


Command = Search | RunTrial | RunSettings | Compare | MeasureAgain
