"""Open a study: choose the device, ask a trial process what the workload is, find or begin its generation."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path

from gputune_tui.domain.environment import Environment, intra_op_threads
from gputune_tui.domain.job import Job, MeasurePlan, ScriptOrder
from gputune_tui.domain.knobs import KnobValue
from gputune_tui.domain.protocol import Inspected
from gputune_tui.domain.script import ScriptFacts
from gputune_tui.domain.script_order import script_order
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget, StudyIdentity, WorkloadRef, names_file, split_name
from gputune_tui.domain.template import check_flags, placeholders, told_knobs
from gputune_tui.domain.trial import Failure, FailureReason
from gputune_tui.engine.commands import StudyConfig
from gputune_tui.engine.detection import check_batch, detect_script, told_settings
from gputune_tui.engine.events import EngineEvent, TrialProgress
from gputune_tui.engine.node import ChosenDevice, choose_device, resolve_budget, users_visible_devices
from gputune_tui.engine.running import run_to_end
from gputune_tui.engine.script_text import script_lines
from gputune_tui.errors import EnvironmentProblem, GputuneError, UsageError, WorkloadError
from gputune_tui.telemetry.host import HostLimits, host_limits
from gputune_tui.telemetry.nvml import GpuProbe, probe_gpus
from gputune_tui.trial.launcher import Launcher
from gputune_tui.trial.supervisor import Limits

INSPECT_LIMITS = Limits(stall_s=120.0)


@dataclass(frozen=True)
class Opened:
    """A study's fixed facts."""

    config: StudyConfig
    device: ChosenDevice
    host: HostLimits
    budget: MemoryBudget
    identity: StudyIdentity
    notes: tuple[str, ...]

    @property
    def baseline(self) -> dict[str, KnobValue]:
        """The baseline's knobs, the interpreter included; of a script that was looked at, what it does by itself."""
        chosen = {**(self.script.knobs() if self.script else {}), **self.config.baseline}
        if self.config.python is not None:
            chosen.setdefault("python", self.config.python)
        return chosen

    @property
    def script(self) -> ScriptFacts | None:
        """What a command does by itself; None where that is not known."""
        return self.identity.script

    def job(
        self,
        settings: TrainSettings,
        fixed_overhead_bytes: int | None,
        paced: bool = False,
        plan: MeasurePlan | None = None,
    ) -> Job:
        """The order for one launch of `settings`; it measures as long as `plan` says, else as the study's own plan."""
        config, gpu = self.config, self.device.gpu
        return Job(
            kind="trial",
            workload=config.workload,
            device=self.device.spec,
            visible_device=gpu.uuid if gpu else None,
            settings=settings,
            global_batch_size=self.identity.global_batch_size,
            budget_bytes=self.budget.device_bytes,
            fixed_overhead_bytes=fixed_overhead_bytes,
            device_free_bytes=self._free_bytes_now(),
            seed=config.seed,
            threads=intra_op_threads(self.host.effective_cpus) if self.device.spec == "cpu" else None,
            paced=paced,
            plan=plan or config.plan,
            host_memory_bytes=self.host.memory_total_bytes,
            cold=config.cold,
            script=self.script_order(settings),
        )

    def script_order(self, settings: TrainSettings) -> ScriptOrder:
        """What is done to a command beside running it.

        Raises:
            UsageError: a knob cannot be set in it.
        """
        kind = self.identity.environment.device_kind
        return script_order(self.config.workload, self.script, settings, kind)

    def _free_bytes_now(self) -> int | None:
        if self.device.gpu is None:
            return None
        gpus = probe_gpus().gpus
        return next((gpu.memory_free_bytes for gpu in gpus if gpu.uuid == self.device.gpu.uuid), None)

    def check(self, settings: TrainSettings) -> None:
        """Refuse settings that a workload cannot be given, or under which a command's samples cannot be counted.

        Raises:
            UsageError: a knob cannot be set from outside; the command is told a micro-batch but not how often to
                accumulate it, so that the samples of its optimizer steps are unknown.
        """
        workload = self.config.workload
        ranks = self.script.world_size if self.script else 1
        if settings.world_size != ranks:
            raise UsageError(
                f"world_size={settings.world_size} is not possible: "
                + ("the command starts its ranks itself" if workload.command else "this version measures one rank")
            )
        check_flags(workload, settings)
        if self.script is not None:
            self.script_order(settings)
            return
        if not workload.command or workload.samples_per_step is not None or settings.accumulation_steps == 1:
            return
        if not placeholders(workload.command, ("accumulation_steps",)):
            raise UsageError(
                f"the command has no placeholder {{accumulation_steps}}, so with micro_batch_size="
                f"{settings.micro_batch_size} its optimizer steps would not hold {settings.samples_per_step} samples; "
                "add it, or say --samples-per-step N if every step holds N samples whatever the micro-batch"
            )

    @property
    def limits(self) -> Limits:
        """How long a trial may take, and how much memory."""
        budget = self.budget
        return Limits(self.config.stall_timeout_s, self.config.trial_timeout_s, budget.device_bytes, budget.host_bytes)


def open_workload(
    config: StudyConfig, launcher: Launcher, probe: Callable[[], GpuProbe] = probe_gpus
) -> Generator[EngineEvent | None, None, Opened]:
    """Find out everything that the first trial needs to know.

    Raises:
        UsageError: a device, budget, interpreter or placeholder that cannot be.
        WorkloadError: the workload cannot be imported; the message is the user's own exception.
        EnvironmentProblem: the device or an interpreter with torch is not there.
    """
    check_interpreter(config.python)
    config = replace(config, workload=absolute(config.workload))
    device = choose_device(config.device, probe, users_visible_devices())
    host = host_limits()
    budget = resolve_budget(config.budget, config.host_budget, device, host)
    detects = bool(config.workload.command) and config.detects
    if config.workload.command and not detects:
        check_placeholders(config.workload)
    inspected = yield from inspect_workload(config, device, host, launcher)
    script: ScriptFacts | None = None
    if detects:
        told = told_settings(config, "cpu" if device.spec == "cpu" else "cuda")
        script = yield from detect_script(config, told, device, host, launcher)
    batch = config.global_batch_size or (script.samples_per_step if script else inspected.global_batch_size)
    if script is not None and batch is not None:
        script = check_batch(config, script, batch)
    if batch is None:
        raise UsageError(
            f"workload {config.workload.name} names no global_batch_size; say --global-batch N (samples per step)"
        )
    environment = Environment(
        host=socket.gethostname(),
        device=device.spec,
        device_name=inspected.device_name,
        device_uuid=device.gpu.uuid if device.gpu else None,
        driver=device.driver,
        cuda=inspected.cuda if device.gpu else None,
        torch=script.torch if script else inspected.torch,
        python=script.python if script else inspected.python,
        effective_cpus=host.effective_cpus,
        host_memory_bytes=host.memory_total_bytes,
        shm_bytes=host.shm_bytes,
    )
    workload = config.workload
    if workload.command and script is None and workload.samples_per_step is None:
        workload = replace(workload, samples_per_step=batch)
    identity = StudyIdentity(workload, inspected.content_hash, batch, environment, config.cold, script)
    notes = [device.note] if device.note else []
    if script is not None:
        notes += script_lines(script)
    return Opened(config, device, host, budget, identity, tuple(notes))


def inspect_workload(
    config: StudyConfig, device: ChosenDevice, host: HostLimits, launcher: Launcher
) -> Generator[EngineEvent | None, None, Inspected]:
    """Ask a trial process what the workload and its interpreter are.

    Raises:
        UsageError: there is no such workload, or it refuses an option.
        WorkloadError: it cannot be imported.
        EnvironmentProblem: torch cannot use the device or is not there.
    """
    job = Job(
        kind="inspect",
        workload=config.workload,
        device=device.spec,
        visible_device=device.gpu.uuid if device.gpu else None,
        settings=TrainSettings(python=config.python),
        threads=intra_op_threads(host.effective_cpus) if device.spec == "cpu" else None,
    )
    yield TrialProgress(0, "inspect")
    with tempfile.TemporaryDirectory(prefix="gputune-") as folder:
        run = yield from run_to_end(launcher, job, Path(folder), INSPECT_LIMITS, 0)
        if run.seen.inspected is not None:
            return run.seen.inspected
        raise inspection_error(config.workload.name, run.failure)


def inspection_error(name: str, failure: Failure | None) -> GputuneError:
    """The failure of an inspection as the program's own: what was named, what the node lacks, or the user's code."""
    if failure is None:
        return WorkloadError(f"workload {name} ended without an answer")
    if failure.reason is FailureReason.INVALID:
        return UsageError(failure.message) if failure.in_workload else EnvironmentProblem(failure.message)
    if not failure.in_workload:
        return EnvironmentProblem(f"cannot read workload {name}: {failure.message}")
    return WorkloadError(f"workload {name} fails: {failure.message}")


def absolute(workload: WorkloadRef) -> WorkloadRef:
    """The workload with a file's absolute path, so that its study and its YAML mean the same from any folder."""
    target, class_name = split_name(workload.name)
    if workload.command or not names_file(target):
        return workload
    suffix = f":{class_name}" if class_name is not None else ""
    return replace(workload, name=f"{Path(target).expanduser().absolute()}{suffix}")


def check_interpreter(python: str | None) -> None:
    """Refuse an interpreter that is not an executable file.

    Raises:
        UsageError: it is not.
    """
    import os
    import shutil

    if python is not None and shutil.which(python) is None:
        what = "is not executable" if os.path.exists(python) else "does not exist"
        raise UsageError(f"--python {python} {what}; give the path of a Python interpreter that has torch")


def check_placeholders(workload: WorkloadRef) -> None:
    """Refuse a command that no knob reaches.

    Raises:
        UsageError: it holds no placeholder.
    """
    if not told_knobs(workload):
        raise UsageError(
            "the command holds no placeholder, so every trial would be the same; write for example "
            "-- python train.py --bs {micro_batch_size}"
        )
