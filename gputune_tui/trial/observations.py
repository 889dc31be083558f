"""What a trial tells while it runs: bytes to events, events to what was observed."""

from __future__ import annotations

from dataclasses import replace

from gputune_tui.domain.conditions import Conditions
from gputune_tui.domain.data_reads import DataReads
from gputune_tui.domain.protocol import (
    MAX_LINE_BYTES,
    BlockDone,
    DataRead,
    Denormals,
    Detected,
    Done,
    Error,
    Event,
    Hello,
    Inspected,
    Memory,
    Note,
    Phase,
    Stopped,
    decode,
)
from gputune_tui.domain.protocol import Guard as GuardEvent
from gputune_tui.domain.protocol import Warmup as WarmupEvent
from gputune_tui.domain.trial import Block, GuardRecord, Launch, MemoryPeaks, PhasePeak, largest_peaks
from gputune_tui.errors import ProtocolError
from gputune_tui.trial.host_memory import HostMemoryWatch
from gputune_tui.trial.watch import Watch


class EventReader:
    """Splits a pipe into lines and lines into events; what is not an event is counted, never obeyed."""

    def __init__(self) -> None:
        self._rest = b""
        self.bad_lines = 0

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
            self.bad_lines += 1
        events = []
        for line in lines:
            try:
                events.append(decode(line))
            except ProtocolError:
                self.bad_lines += 1
        return events


class Observations:
    """What the events of one launch add up to."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.step_times_s: list[float] = []
        self.warmup_steps = 0
        self.main_pid: int | None = None
        self.host_memory = HostMemoryWatch()
        self.data: DataReads | None = None
        self._own_memory = MemoryPeaks()
        self._device_peak_outside_bytes: int | None = None
        self._phase_peaks: dict[str, int] = {}
        self.fixed_overhead_bytes: int | None = None
        self.resident_mark_bytes: int | None = None
        self.conditions = Conditions()
        self.guard: GuardRecord | None = None
        self.notes: list[str] = []
        self.phase = "start"
        self.done: Done | None = None
        self.error: Error | None = None
        self.stopped: Stopped | None = None
        self.inspected: Inspected | None = None
        self.detected: Detected | None = None

    def take(self, event: Event) -> None:
        """Add one event."""
        if isinstance(event, BlockDone):
            self.blocks.append(event.block)
            self.step_times_s += event.step_times_s
        elif isinstance(event, Phase):
            self.phase = event.name
        elif isinstance(event, Memory):
            self._own_memory = event.peaks
            if event.peaks.device_peak_bytes is not None:
                self._phase_peaks[self.phase] = event.peaks.device_peak_bytes
            self.fixed_overhead_bytes = event.fixed_overhead_bytes or self.fixed_overhead_bytes
            self.resident_mark_bytes = event.resident_mark_bytes or self.resident_mark_bytes
        elif isinstance(event, Denormals):
            self.conditions = replace(self.conditions, denormal_fraction=event.fraction)
        elif isinstance(event, WarmupEvent):
            self.warmup_steps = event.steps
            self.conditions = replace(
                self.conditions,
                others_cpu_before_fraction=event.others_cpu_fraction,
                idle_cpu_before_fraction=event.idle_cpu_fraction,
            )
            if not event.settled:
                self.notes.append("step times had not settled when the warm-up ended")
        elif isinstance(event, GuardEvent):
            self.guard = event.record
        elif isinstance(event, DataRead):
            self.data = event.record
        elif isinstance(event, Hello):
            self.main_pid = event.pid
            # Of a command this is the process that trains: what failed in another before is its own affair.
            self.error = None
        elif isinstance(event, Note):
            if event.text not in self.notes:
                self.notes.append(event.text)
        elif isinstance(event, Done):
            self.done = event
        elif isinstance(event, Error):
            self.error = self.error or event
        elif isinstance(event, Stopped):
            self.stopped = event
        elif isinstance(event, Inspected):
            self.inspected = event
        elif isinstance(event, Detected):
            self.detected = event

    @property
    def memory(self) -> MemoryPeaks:
        """The peaks that the trial told or that were seen from outside, whichever is larger.

        The host's is that of its whole process tree. The device's from outside holds what the trial's allocator does
        not count: libraries' own buffers, a context that grows.
        """
        own = replace(self._own_memory, host_peak_bytes=self.host_memory.peak_bytes(self._own_memory.host_peak_bytes))
        return largest_peaks([own, MemoryPeaks(device_peak_bytes=self._device_peak_outside_bytes)])

    def take_device_peak(self, peak_bytes: int) -> None:
        """What the device, or on the CPU the kernel, showed for the trial; what the trial tells later leaves it."""
        self._device_peak_outside_bytes = max(self._device_peak_outside_bytes or 0, peak_bytes)

    def launch(self, watch: Watch | None = None) -> Launch:
        """The launch as it is stored, with what `watch` saw from outside."""
        return Launch(
            blocks=tuple(self.blocks),
            step_times_s=tuple(self.step_times_s),
            warmup_steps=self.warmup_steps,
            memory=self.memory,
            breakdown=self.done.breakdown if self.done else None,
            guard=self.guard,
            notes=tuple(self.notes),
            conditions=watch.conditions(self.conditions) if watch else self.conditions,
            phase_peaks=tuple(PhasePeak(name, peak) for name, peak in self._phase_peaks.items()),
            data=self.data,
        )
