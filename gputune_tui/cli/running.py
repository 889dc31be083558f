"""`run`: become the user's own job under the settings of a configuration."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click

from gputune_tui.cli.driving import Interrupted, signals_noted
from gputune_tui.domain.environment import intra_op_threads
from gputune_tui.domain.job import RUN_VARIABLE, Claim, Job, ScriptOrder
from gputune_tui.domain.plain import to_plain
from gputune_tui.domain.script import ScriptFacts
from gputune_tui.domain.script_order import script_order
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.template import SCRATCH, files_named, fill_placeholders, hash_command, placeholders
from gputune_tui.engine.commands import StudyConfig
from gputune_tui.engine.detection import detect_script
from gputune_tui.engine.node import choose_device, users_visible_devices
from gputune_tui.errors import EnvironmentProblem, UsageError
from gputune_tui.export.report import ExportReport
from gputune_tui.export.yaml_config import read_config
from gputune_tui.ranking.wording import settings_text
from gputune_tui.telemetry.host import host_limits
from gputune_tui.telemetry.nvml import probe_gpus
from gputune_tui.trial.launcher import LocalLauncher, process_environment, users_environment, with_script_hooks


def run(command: tuple[str, ...] | None, given: dict[str, Any]) -> NoReturn:
    """Body of `run`: this process becomes the job, so that signals and the exit code are the job's own.

    Raises:
        GputuneError: the configuration, or the command cannot be started under it.
    """
    if not command:
        raise UsageError("nothing follows --; write for example: gputune-tui run gputune.yaml -- python train.py")
    claim = read_config(Path(given["config"]))
    if placeholders(command, (SCRATCH,)):
        raise UsageError("{scratch} is a folder of a trial's own; a real job needs one of yours")
    workload = WorkloadRef(" ".join(command), command=tuple(command), flags=claim.workload.flags)
    order = order_for(claim, workload)
    for line in differences(claim):
        click.echo(f"gputune-tui: {line}", err=True)
    click.echo(f"gputune-tui: running under {settings_text(claim.settings, None)}", err=True)
    environment = job_environment(claim, workload, order)
    filled = fill_placeholders(workload, claim.settings, claim.global_batch_size)
    if shutil.which(filled[0]) is None:
        raise UsageError(f"there is no command {filled[0]}")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores both, and what is ignored stays so in the job
    try:
        os.execvpe(filled[0], filled, environment)
    except OSError as error:
        raise EnvironmentProblem(f"cannot start {filled[0]}: {(error.strerror or str(error)).lower()}") from error


def order_for(claim: ExportReport, workload: WorkloadRef) -> ScriptOrder:
    """What to set in the job from outside: as it was measured where it is the same script, else after a look at it.

    Raises:
        UsageError: a knob of the configuration cannot be set in it, or it trains on another number of samples a step.
        WorkloadError: it ends before it has trained.
    """
    if claim.script is not None and is_same_script(claim.workload.command, claim.content_hash, workload.command):
        return claim.script
    click.echo("gputune-tui: this script was not measured as it is: looking at its first steps", err=True)
    facts = look_at(claim, workload)
    if facts.samples_per_step != claim.global_batch_size:
        raise UsageError(
            f"the script trains on {facts.samples_per_step} samples a step, the configuration was measured on "
            f"{claim.global_batch_size}; give the script that batch size, or tune it as it is"
        )
    return script_order(workload, facts, claim.settings, claim.environment.device_kind)


def is_same_script(measured: Sequence[str], content_hash: str, command: Sequence[str]) -> bool:
    """Whether the files that both name are the same, and unchanged since; other arguments may differ."""
    return hash_command(measured) == content_hash and files_named(measured) == files_named(command)


def look_at(claim: ExportReport, workload: WorkloadRef) -> ScriptFacts:
    """Run the command for some steps under the settings that it is told.

    Raises:
        GputuneError: see `detect_script`; Interrupted where a signal came.
    """
    device = "cpu" if claim.environment.device_kind == "cpu" else None
    config = StudyConfig(workload, device=device, global_batch_size=claim.global_batch_size)
    chosen = choose_device(config.device, probe_gpus, users_visible_devices())
    with signals_noted() as flag:
        task = detect_script(config, claim.settings, chosen, host_limits(), LocalLauncher())
        try:
            while True:
                next(task)
                if flag.number is not None:
                    raise Interrupted(flag.number, f"interrupted ({signal.Signals(flag.number).name})")
        except StopIteration as end:
            facts: ScriptFacts = end.value
            return facts
        finally:
            task.close()


def job_environment(claim: ExportReport, workload: WorkloadRef, order: ScriptOrder) -> dict[str, str]:
    """The user's own environment and the job in it; on a CPU also what a trial's libraries were told."""
    speed = claim.throughput
    promise = Claim(speed.value, speed.low, claim.environment.torch) if speed else Claim(torch=claim.environment.torch)
    is_cpu = claim.environment.device_kind == "cpu"
    job = Job(
        kind="run",
        workload=workload,
        device="cpu" if is_cpu else "cuda",
        settings=claim.settings,
        global_batch_size=claim.global_batch_size,
        script=order,
        claim=promise,
    )
    if is_cpu:
        environment = process_environment(replace(job, threads=intra_op_threads(host_limits().effective_cpus)))
    else:
        environment = with_script_hooks(users_environment())
    environment[RUN_VARIABLE] = json.dumps(to_plain(job))
    return environment


def differences(claim: ExportReport) -> Iterator[str]:
    """Where this machine or the script is not what was measured, in words."""
    measured = claim.environment
    if claim.workload.command and hash_command(claim.workload.command) != claim.content_hash:
        yield "the command or its files have changed since they were measured"
    if measured.device_kind != "cpu":
        probe = probe_gpus()
        names = {gpu.name or "an unnamed GPU" for gpu in probe.gpus}
        if measured.device_name not in names:
            here = ", ".join(sorted(names)) or "none"
            yield f"measured on {measured.device_name}, the GPUs here are: {here}"
        if probe.driver != measured.driver:
            yield f"measured with driver {measured.driver}, here it is {probe.driver}"
    elif (cpus := host_limits().effective_cpus) != measured.effective_cpus:
        yield f"measured on {measured.effective_cpus:g} CPUs, here are {cpus:g}"
