"""The GPU while trials run on it: its clocks, who else is there, and what a trial's processes hold of its memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import Protocol

from gputune_tui.domain.conditions import Conditions, GpuConditions, Neighbour
from gputune_tui.domain.telemetry import DeviceSnapshot, NodeSnapshot, ProcessSnapshot
from gputune_tui.engine.events import EngineEvent
from gputune_tui.telemetry.collector import Collector

INTERVAL_S = 0.5
"""Between two readings; a trial over its memory mark is ended within about a second."""
FIRST_PATIENCE_S = 10.0
"""How long the first reading is waited for: the process that reads has to start, and the driver to wake up."""
MPS = "nvidia-cuda-mps"
"""Servers that compute for others, and show in every list."""
PATIENCE_S = 2.0
"""The same for a newer one; a driver that hangs does not hold up the trials."""


class Source(Protocol):
    """What is needed of `telemetry.collector.Collector`."""

    def start(self) -> None:
        """Start the sampling process."""

    def poll(self) -> NodeSnapshot | None:
        """The newest snapshot since the last call; never blocks."""

    def wait(self, timeout_s: float) -> None:
        """Until there may be one."""

    def set_quiet(self, quiet: bool) -> None:
        """Only the cheapest readings."""

    def list_processes(self) -> None:
        """And who is on the GPUs, at every tick."""

    def close(self) -> None:
        """End the process."""


class GpuNode:
    """One GPU as the sampling process sees it; the process is started with the first question."""

    def __init__(self, uuid: str, source: Callable[[], Source] | None = None) -> None:
        self._uuid = uuid
        self._make = source or (lambda: Collector(interval_s=INTERVAL_S))
        self._source: Source | None = None
        self._quiet = False
        self._strangers: set[int] = set()
        self._snapshot: NodeSnapshot | None = None
        self.number = 0
        """Of the readings so far."""

    def refresh(self) -> Generator[EngineEvent | None, None, None]:
        """Wait for a reading from now, while no trial of ours is on the GPU; not for long where none comes."""
        patience_s = PATIENCE_S
        if self._source is None:
            self._source, patience_s = self._make(), FIRST_PATIENCE_S
            self._source.start()
            self._source.list_processes()
        self.set_quiet(False)
        now, deadline = time.time(), time.monotonic() + patience_s
        while time.monotonic() < deadline and not self._is_from(now):
            self._source.wait(INTERVAL_S / 5)
            self.poll()
            yield None
        # A number of another PID namespace can be one of ours; those that are here before our trial are not. A list
        # from before may hold our trial that has just ended.
        if self._is_from(now):
            self._strangers = {process.pid for process in self._processes() if process.is_foreign}

    def _is_from(self, moment_s: float) -> bool:
        """Whether all that is known of the GPU was read after a moment of the wall clock."""
        snapshot, device = self._snapshot, self.device
        if snapshot is None or device is None or snapshot.time_s < moment_s:
            return False
        if device.index >= len(snapshot.listed_s):
            return True
        listed_s = snapshot.listed_s[device.index]
        return listed_s is not None and listed_s >= moment_s

    def poll(self) -> None:
        """Take over what has been read."""
        found = self._source.poll() if self._source is not None else None
        if found is not None:
            self._snapshot = found
            self.number += 1

    def wait(self, timeout_s: float) -> None:
        """Until there may be something to poll."""
        if self._source is not None:
            self._source.wait(timeout_s)

    def set_quiet(self, quiet: bool) -> None:
        """Whether a block is timed."""
        if self._source is not None and quiet != self._quiet:
            self._quiet = quiet
            self._source.set_quiet(quiet)

    @property
    def device(self) -> DeviceSnapshot | None:
        """Its newest values; None where there are none from now."""
        devices = self._snapshot.devices if self._snapshot else ()
        return next((d for d in devices if d.uuid == self._uuid and d.state == "live"), None)

    @property
    def others(self) -> tuple[Neighbour, ...]:
        """Who computes on it and is no trial of ours. Those that only draw do not count."""
        return tuple(
            Neighbour(process.pid, process.user, process.gpu_memory_bytes, process.command)
            for process in self._processes()
            if not (process.is_trial or process.is_gone)
            and (not process.is_foreign or process.pid in self._strangers)
            and not process.command.startswith(MPS)
        )

    def used_bytes(self, root: int | None) -> int | None:
        """What the processes of the trial whose main process is `root` hold of its memory; None where not told."""
        rows = self._processes()
        parents = {row.pid: row.parent_pid for row in self._snapshot.processes} if self._snapshot else {}
        sizes = [row.gpu_memory_bytes for row in rows if row.is_trial and _is_under(row.pid, root, parents)]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None

    def close(self) -> None:
        """End the sampling process."""
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _processes(self) -> list[ProcessSnapshot]:
        device = self.device
        if device is None or self._snapshot is None:
            return []
        return [p for p in self._snapshot.processes if p.device_index == device.index and p.kind != "G"]


def _is_under(pid: int, root: int | None, parents: dict[int, int | None]) -> bool:
    """Whether `root` is the process or one above it, as far as the rows tell."""
    seen: set[int] = set()
    step: int | None = pid
    while step is not None and step not in seen:
        if step == root:
            return True
        seen.add(step)
        step = parents.get(step)
    return False


class DeviceWatch:
    """One launch's view of its device: a `trial.watch.Watch`. Without a GPU it knows only those it is told."""

    def __init__(self, node: GpuNode | None, told: Callable[[], Iterable[Neighbour]] = tuple) -> None:
        """`told`: who else is known to measure on the device, asked at every look and at the end of the launch."""
        self._node = node
        self._told = told
        self._number = node.number if node else 0
        self._others: dict[int | None, Neighbour] = {n.pid: n for n in node.others} if node else {}
        self._timed: list[DeviceSnapshot] = []

    def look(self, is_timed: bool) -> None:
        """Take in a new reading; while a block is timed few things are read."""
        self._told()
        node = self._node
        if node is None:
            return
        node.set_quiet(is_timed)
        node.poll()
        if node.number == self._number:
            return
        self._number = node.number
        for other in node.others:
            known = self._others.get(other.pid)
            self._others[other.pid] = other if known is None else _larger(known, other)
        if is_timed and node.device is not None:
            self._timed.append(node.device)

    def device_bytes(self, pid: int | None) -> int | None:
        """What the driver shows for the trial of that main process."""
        return self._node.used_bytes(pid) if self._node else None

    def conditions(self, of_trial: Conditions) -> Conditions:
        """What the trial told, with what was seen from here."""
        others = (*self._others.values(), *self._told())
        return replace(of_trial, others=others, gpu=gpu_conditions(self._timed))


def _larger(known: Neighbour, found: Neighbour) -> Neighbour:
    return found if (found.memory_bytes or 0) >= (known.memory_bytes or 0) else known


def gpu_conditions(timed: list[DeviceSnapshot]) -> GpuConditions | None:
    """The readings put together; None without any."""
    if not timed:
        return None
    clocks = [d.sm_clock_mhz for d in timed if d.sm_clock_mhz is not None]
    reasons = Counter(reason for device in timed for reason in device.throttle)
    return GpuConditions(
        readings=len(timed),
        sm_clock_low_mhz=min(clocks, default=None),
        sm_clock_high_mhz=max(clocks, default=None),
        temperature_c=max((d.temperature_c for d in timed if d.temperature_c is not None), default=None),
        power_w=max((d.power_w for d in timed if d.power_w is not None), default=None),
        throttle={reason: count / len(timed) for reason, count in reasons.items()},
    )
