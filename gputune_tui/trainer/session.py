"""One trial from import to the last measurement: builds what the settings say and lets the meter run it."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from gputune_tui.domain.job import Job
from gputune_tui.domain.protocol import DataRead, Denormals, Done, Finish, Memory, Note
from gputune_tui.domain.protocol import Guard as GuardEvent
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import MemoryPeaks
from gputune_tui.trainer.checkpointing import apply_checkpointing
from gputune_tui.trainer.contention import BlockWatch
from gputune_tui.trainer.data_temperature import DataWatch
from gputune_tui.trainer.denormals import DenormalWatch
from gputune_tui.trainer.describe import describe_exception
from gputune_tui.trainer.device import CudaDevice, Device, open_device
from gputune_tui.trainer.events import EventSink, Orders
from gputune_tui.trainer.guard import Guard
from gputune_tui.trainer.libraries import load_libraries
from gputune_tui.trainer.loader import Batches, build_batches, dataset_length
from gputune_tui.trainer.memory import Cap, CpuMemory, CudaMemory, MemoryWatch
from gputune_tui.trainer.meter import Meter
from gputune_tui.trainer.noise import loss_noise
from gputune_tui.trainer.optimizer import apply_optimizer_implementation
from gputune_tui.trainer.precision import precision_note, prepare_precision
from gputune_tui.trainer.seeding import seed_everything
from gputune_tui.trainer.train_step import TrainStep, batchnorm_note, to_channels_last
from gputune_tui.trainer.workload import AdaptedWorkload, load_workload
from gputune_tui.trainer.worst_case import WorstCase


@dataclass
class _Running:
    """What the process's last words need: set once the memory watch exists."""

    memory: MemoryWatch | None = None
    peaks: MemoryPeaks | None = None
    closers: list[Callable[[], None]] = field(default_factory=list)
    """What is to be released at the end, the last first."""


_running = _Running()


def last_peaks() -> MemoryPeaks | None:
    """Peaks up to now, for the report of a trial that failed."""
    return _running.memory.peaks() if _running.memory else _running.peaks


def cap_in_force() -> Cap | None:
    """What refuses the trial memory beyond its budget; None where nothing does, or not yet."""
    return _running.memory.cap if _running.memory else None


def close_all(events: EventSink) -> None:
    """Release what the trial holds, once it has reported how it ended: what fails here is only a note."""
    for close in reversed(_running.closers):
        try:
            close()
        except BaseException as error:  # user code, SystemExit and KeyboardInterrupt included
            events.send(Note(f"closing failed: {describe_exception(error)}"))
            traceback.print_exception(type(error), error, error.__traceback__)


def run_trial(job: Job, events: EventSink) -> None:
    """Run the job and report it; every way in which it cannot go on is an exception for `classify`."""
    settings = job.settings
    assert settings is not None
    watch = BlockWatch()
    watch.begin()
    device = open_device(job.device, job.threads)
    prepare_precision(settings.precision, device.kind)
    if device.kind == "cpu":
        # Before any thread starts: the mode belongs to each thread (trial_engine.md section 4).
        torch.set_flush_denormal(settings.flush_denormal)
    if (note := precision_note(settings.precision, device.kind)) is not None:
        events.send(Note(note))
    seed_everything(job.seed)
    events.phase("import")
    load_libraries()
    data = DataWatch(job, events.beat)
    workload = load_workload(job.workload)
    _running.closers.append(workload.close)
    _measure(job, settings, workload, device, events, watch, data)


def _watch_memory(job: Job, device: Device) -> MemoryWatch:
    if isinstance(device, CudaDevice):
        return CudaMemory(device.torch_device, job.budget_bytes, job.device_free_bytes)
    return CpuMemory(job.budget_bytes, job.fixed_overhead_bytes, torch.get_num_threads())


def _build(
    workload: AdaptedWorkload, settings: TrainSettings, device: Device, events: EventSink
) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = workload.build_model().to(device.torch_device)
    model.train()
    if settings.channels_last:
        to_channels_last(model)
    notes = apply_checkpointing(model, settings.activation_checkpointing, workload.checkpoint_blocks(model))
    if (note := batchnorm_note(model, settings)) is not None:
        notes.append(note)
    for text in notes:
        events.send(Note(text))
    optimizer = workload.build_optimizer([p for p in model.parameters() if p.requires_grad])
    apply_optimizer_implementation(optimizer, settings.optimizer)
    if settings.compile != "none":
        model.compile(mode=settings.compile)
    return model, optimizer


def _measure(
    job: Job,
    settings: TrainSettings,
    workload: AdaptedWorkload,
    device: Device,
    events: EventSink,
    watch: BlockWatch,
    data: DataWatch,
) -> None:
    memory = _running.memory = _watch_memory(job, device)

    def report_memory() -> None:
        peaks = memory.peaks()
        if peaks != _running.peaks:
            _running.peaks = peaks
            events.send(Memory(peaks, memory.fixed_overhead_bytes, memory.resident_mark_bytes))

    events.phase("build")
    report_memory()  # from here on the parent holds it to its mark
    with data.files.not_data():
        model, optimizer = _build(workload, settings, device, events)
    batches = build_batches(workload, settings, device.kind, job.seed)
    try:
        guard = Guard(model)
        report_memory()
        step = TrainStep(workload, model, optimizer, settings, device.torch_device)
        worst_case = WorstCase(workload, model, step, settings, device, events, report_memory)
        meter = Meter(
            step,
            worst_case.watched(batches.windows(settings.accumulation_steps)),
            device,
            job.plan,
            events,
            guard,
            prefetched_windows(batches, settings),
            report_memory,
            watch,
            data,
        )
        try:
            _run_meter(job, meter, events, worst_case)
            breakdown = meter.breakdown()
            report_memory()
            events.phase("finish")  # what follows takes memory of its own, which no training does
            if device.kind == "cpu" and not settings.flush_denormal:
                events.send(Denormals(_denormal_fraction(meter, model, optimizer, settings)))
        finally:
            for text in batches.notes:
                events.send(Note(text))
        if (reads := data.record(dataset_length(getattr(batches.loader, "dataset", None)))) is not None:
            events.send(DataRead(reads))
        record = guard.record()
        events.phase("noise")
        record = replace(record, loss_noise_fraction=_noise(job, settings, workload, model, batches, device, events))
        events.send(GuardEvent(record))
        events.send(Done(breakdown))
    finally:
        batches.close()


def _denormal_fraction(
    meter: Meter, model: nn.Module, optimizer: torch.optim.Optimizer, settings: TrainSettings
) -> float | None:
    """Of one further step, or of what it has left in gradients and states where its operators were compiled."""
    watch = DenormalWatch()
    try:
        if settings.compile == "none":
            meter.run_under(watch)
        state = [value for kept in optimizer.state.values() for value in kept.values()]
        watch.look([*model.parameters(), *(p.grad for p in model.parameters()), *state])
    except Exception as error:  # user code that does not bear being looked at: everything that counts is in hand
        traceback.print_exception(type(error), error, error.__traceback__)
        return None
    return watch.fraction


def _noise(
    job: Job,
    settings: TrainSettings,
    workload: AdaptedWorkload,
    model: nn.Module,
    batches: Batches,
    device: Device,
    events: EventSink,
) -> float | None:
    """The noise of the loss, None where it cannot be measured: everything else of the trial is in hand by then."""
    batches.close()
    try:
        return loss_noise(workload, model, batches.loader, settings, device.torch_device, job.seed, events.beat)
    except Exception as error:  # user code on data of its own, in a way it may never have run before
        traceback.print_exception(type(error), error, error.__traceback__)
        return None


def _run_meter(job: Job, meter: Meter, events: EventSink, worst_case: WorstCase) -> None:
    events.phase("warm_up")
    meter.warm_up()
    if worst_case.run():
        events.phase("warm_up")  # what fails from here on is ordinary training
        meter.use_up()  # the loader has prepared batches meanwhile
    if not job.paced:
        events.phase("measure")
        meter.run_plan()
    else:
        orders = Orders()
        meter.rest()
        events.phase("ready")
        while (order := orders.next()) is not None and not isinstance(order, Finish):
            events.phase("measure")
            meter.settle()
            meter.block()
            meter.rest()
            events.phase("ready")
    events.phase("breakdown")


def prefetched_windows(batches: Batches, settings: TrainSettings) -> int:
    """Optimizer steps that the loader's prefetched batches last."""
    return math.ceil(batches.prefetched_batches / settings.accumulation_steps)
