"""Look at a script before its first trial: what it does by itself."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

from gputune_tui.domain.environment import intra_op_threads
from gputune_tui.domain.job import Job
from gputune_tui.domain.script import ScriptFacts
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import BATCH_KNOBS, resolve
from gputune_tui.domain.template import check_flags, told_knobs
from gputune_tui.domain.trial import FailureReason
from gputune_tui.engine.commands import StudyConfig
from gputune_tui.engine.device_place import DevicePlace
from gputune_tui.engine.events import EngineEvent, TrialProgress
from gputune_tui.engine.node import ChosenDevice
from gputune_tui.engine.running import run_to_end
from gputune_tui.errors import UsageError, WorkloadError
from gputune_tui.telemetry.host import HostLimits
from gputune_tui.trial.launcher import Launcher
from gputune_tui.trial.supervisor import Limits


def detect_script(
    config: StudyConfig, settings: TrainSettings, device: ChosenDevice, host: HostLimits, launcher: Launcher
) -> Generator[EngineEvent | None, None, ScriptFacts]:
    """Run the command for some optimizer steps, told what `settings` say, and see what it does by itself.

    The device is this one's meanwhile, as for a trial: what is measured there must not be disturbed.

    Raises:
        UsageError: its samples cannot be counted.
        WorkloadError: it ends before it has trained.
        EnvironmentProblem: somebody else computes on the GPU, and nobody has said to share it.
    """
    job = Job(
        kind="detect",
        workload=config.workload,
        device=device.spec,
        visible_device=device.gpu.uuid if device.gpu else None,
        settings=settings,
        global_batch_size=config.global_batch_size,
        seed=config.seed,
        threads=intra_op_threads(host.effective_cpus) if device.spec == "cpu" else None,
    )
    limits = Limits(config.stall_timeout_s, config.trial_timeout_s)
    place = DevicePlace(device, config.share)
    try:
        yield from place.admit()
        yield from place.take()
        yield TrialProgress(0, "detect")
        with tempfile.TemporaryDirectory(prefix="gputune-") as folder:
            run = yield from run_to_end(launcher, job, Path(folder), limits, 0, place.watch())
    finally:
        place.close()
    if run.seen.detected is not None:
        return run.seen.detected.facts
    failure = run.failure
    if failure is None:
        raise WorkloadError(f"the command ended without an answer: {config.workload.name}")
    if failure.reason is FailureReason.INVALID and failure.in_workload:
        raise UsageError(f"the command trains, but {failure.message}")
    raise WorkloadError(f"the command fails as it is: {failure.message}")


def told_settings(config: StudyConfig, device_kind: str) -> TrainSettings:
    """What the placeholders of a command stand for before anything is known of it.

    Raises:
        UsageError: it is to be told batch sizes that nobody has named, or a value for which `--flag` has no words.
    """
    batch = config.global_batch_size
    if batch is None:
        named = [size for name in BATCH_KNOBS if isinstance(size := config.baseline.get(name), int)]
        if not named and told_knobs(config.workload) & set(BATCH_KNOBS):
            raise UsageError(
                "the command is told its batch size, which nobody has named; say --global-batch N (samples per step)"
            )
        batch = math.prod(named)
    settings = resolve({}, config.baseline, batch, device_kind)
    if settings is None:
        raise UsageError(f"the baseline's batch knobs contradict --global-batch {batch}")
    check_flags(config.workload, settings)
    return settings


def check_batch(config: StudyConfig, script: ScriptFacts, global_batch_size: int) -> ScriptFacts:
    """The facts in the samples that the user counts, where they are declared.

    Raises:
        UsageError: the script trains on another global batch than was said.
    """
    if script.samples_per_step == global_batch_size:
        return script
    if config.workload.samples_per_step is None:
        raise UsageError(
            f"the script trains on {script.samples_per_step} samples a step, not on the --global-batch of "
            f"{global_batch_size}; leave it out, or say --samples-per-step {global_batch_size} if you count otherwise"
        )
    micro, rest = divmod(global_batch_size, script.accumulation_steps * script.world_size)
    if rest or not micro:
        raise UsageError(
            f"--samples-per-step {global_batch_size} is no multiple of the {script.accumulation_steps} backward passes "
            f"x {script.world_size} ranks of a step"
        )
    refused = {**script.refused, **dict.fromkeys(BATCH_KNOBS, "the samples of a step are declared, not counted")}
    return replace(script, micro_batch_size=micro, refused=refused)
