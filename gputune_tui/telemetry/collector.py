"""The client of the sampling process: its newest snapshot, and the watchdog that replaces it when it dies or hangs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gputune_tui.domain.telemetry import DeviceSnapshot, NodeSnapshot, SamplerSettings
from gputune_tui.telemetry.sampler_process import SamplerProcess

SAMPLER_MODULE = "gputune_tui.telemetry.sampler"
START_PATIENCE_S = 10.0
"""How long a new process may take to its first snapshot: an interpreter starts slowly on a busy node or a cold disk."""
RESTART_DELAYS_S = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""After each death in a row, the last one repeating: a process stuck in the kernel leaves one more behind each time."""
GPU_DELAYS_S = (5.0, 10.0, 20.0, 40.0, 60.0)
"""After a death the driver, its likeliest cause, is left alone this long, so that the host's numbers go on."""
SETTLED_S = 30.0
"""A process that lived this long with the GPUs on counts as sound: delays begin anew."""
CLOSE_PATIENCE_S = 0.5
EXIT_PATIENCE_S = 1.0
"""Between the end of its output and its exit status."""


def sampler_command(simulated_gpus: int | None = None, seed: int = 0, recording: Path | None = None) -> tuple[str, ...]:
    """What starts the sampling process; a scripted node of so many GPUs, or a recording, takes this one's place."""
    simulate = () if simulated_gpus is None else ("--simulate", str(simulated_gpus), "--seed", str(seed))
    replay = () if recording is None else ("--replay", str(recording.absolute()))
    return (sys.executable, "-m", SAMPLER_MODULE, *simulate, *replay)


class Collector:
    """Starts the sampling process and reads what it writes. Not thread-safe; call `poll` a few times per second."""

    def __init__(
        self,
        command: Sequence[str] | None = None,
        interval_s: float = 1.0,
        stale_after_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start nothing yet.

        Args:
            command: what to run; `sampler_command()` by default.
            interval_s: between two snapshots; the sampler takes 0.25 s at least.
            stale_after_s: silence after which the process is replaced; three intervals and two seconds by default.
        """
        self._command = tuple(command) if command else sampler_command()
        self._settings = SamplerSettings(interval_s=interval_s)
        self._stale_after_s = stale_after_s
        self._clock = clock
        self._process: SamplerProcess | None = None
        self._abandoned: list[SamplerProcess] = []
        self._last: NodeSnapshot | None = None
        self._arrived_s: float | None = None
        self._silent_since_s = self._polled_s = self._gpus_since_s = 0.0
        self._ended_s: float | None = None
        self._heard = False
        self._start_at_s: float | None = None
        self._gpus_at_s: float | None = None
        self._deaths = 0
        self.problem: str | None = None
        """Why the numbers stand still or lack the GPUs, one sentence; None while all is well."""

    @property
    def age_s(self) -> float | None:
        """Since the newest snapshot arrived."""
        return None if self._arrived_s is None else self._clock() - self._arrived_s

    @property
    def pid(self) -> int | None:
        """Of the sampling process, None between two."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process; what goes wrong is told by `problem` and tried again by `poll`."""
        if self._process is None:
            self._spawn()

    def poll(self) -> NodeSnapshot | None:
        """The newest snapshot since the last call, None if there is nothing new. Never blocks.

        When the process died or fell silent, its last snapshot comes once more with the GPUs marked stale.
        """
        self._abandoned = [process for process in self._abandoned if not process.has_exited()]
        if self._process is None:
            if self._start_at_s is not None and self._clock() >= self._start_at_s:
                self._spawn()
            return None
        found, ended = self._process.read()
        now = self._clock()
        stood_still_s, self._polled_s = now - self._polled_s, now
        if found is not None:
            return self._take(found, now)
        if ended:
            self._ended_s = now if self._ended_s is None else self._ended_s
            if self._process.has_exited() or now - self._ended_s > EXIT_PATIENCE_S:
                return self._lose(self._process.ending(), now)
            return None
        patience_s = self._patience_s()
        if stood_still_s > patience_s / 2:
            # The caller itself stood still (stopped, or the machine did): the silence says nothing about the process.
            self._silent_since_s = now
        silent_s = now - self._silent_since_s
        if silent_s > patience_s:
            return self._lose(f"did not answer for {silent_s:.0f} s, as happens when a driver hangs", now)
        return None

    def wait(self, timeout_s: float) -> None:
        """Until there may be something to poll, at most so long."""
        if self._process is None:
            time.sleep(timeout_s)
        else:
            self._process.await_output(timeout_s)

    def set_interval(self, seconds: float) -> None:
        """Seconds between two snapshots."""
        self._order(replace(self._settings, interval_s=seconds))

    def set_quiet(self, quiet: bool) -> None:
        """While a timed block runs, only the cheapest readings are taken."""
        self._order(replace(self._settings, quiet=quiet))

    def list_processes(self) -> None:
        """From now on who is on the GPUs is read at every tick, in quiet too."""
        self._order(replace(self._settings, list_processes=True))

    def expand(self, gpus: Sequence[int], all_of_them: bool = False) -> None:
        """The GPUs, by index, of which everything is to be read."""
        if (tuple(gpus), all_of_them) != (self._settings.expanded, self._settings.expand_all):
            self._order(replace(self._settings, expanded=tuple(gpus), expand_all=all_of_them))

    def close(self) -> None:
        """End the process; one that is stuck in the kernel is left behind after about a second."""
        self._start_at_s = None
        process, self._process = self._process, None
        if process is not None:
            process.hang_up()
            process.wait(CLOSE_PATIENCE_S)
            process.kill()
            process.wait(CLOSE_PATIENCE_S)

    def _spawn(self) -> None:
        self._start_at_s = self._ended_s = None
        self._heard = False
        now = self._silent_since_s = self._polled_s = self._gpus_since_s = self._clock()
        try:
            self._process = SamplerProcess(self._command)
        except OSError as error:
            self._deaths += 1
            self._start_at_s = now + _step(RESTART_DELAYS_S, self._deaths)
            self.problem = f"The process that reads the node cannot start ({error.strerror}); it is tried again."
            return
        self._process.order(self._settings)

    def _order(self, settings: SamplerSettings) -> None:
        self._settings = settings
        if self._process is not None:
            self._process.order(settings)

    def _patience_s(self) -> float:
        limit_s = self._stale_after_s
        if limit_s is None:
            limit_s = 3 * self._settings.interval_s + 2.0
        return limit_s if self._heard else max(limit_s, START_PATIENCE_S)

    def _take(self, found: NodeSnapshot, now: float) -> NodeSnapshot:
        self._arrived_s = self._silent_since_s = now
        self._heard = True
        if self._settings.gpus and (found.problem or any(device.state != "stale" for device in found.devices)):
            self.problem = None
        if self._last is not None:
            found = _completed(found, self._last)
        if self._gpus_at_s is not None and now >= self._gpus_at_s:
            self._gpus_at_s, self._gpus_since_s = None, now
            self._order(replace(self._settings, gpus=True))
        self._last = found
        return found

    def _lose(self, what: str, now: float) -> NodeSnapshot | None:
        """Get rid of the process and plan the next; the last snapshot with its GPUs stale."""
        assert self._process is not None
        process, self._process = self._process, None
        process.kill()
        self._abandoned.append(process)
        was_sound = self._settings.gpus and now - self._gpus_since_s > SETTLED_S
        self._deaths = 1 if was_sound else self._deaths + 1
        self._start_at_s = now + _step(RESTART_DELAYS_S, self._deaths)
        gpu_delay_s = _step(GPU_DELAYS_S, self._deaths)
        self._gpus_at_s = now + gpu_delay_s
        self._settings = replace(self._settings, gpus=False)
        self.problem = (
            f"The process that reads the node {what}; it is replaced, "
            f"and the GPUs are asked again after {gpu_delay_s:.0f} s."
        )
        if self._last is None:
            return None
        self._last = replace(self._last, devices=_stale(self._last.devices))
        return self._last


def _stale(devices: Sequence[DeviceSnapshot]) -> tuple[DeviceSnapshot, ...]:
    return tuple(replace(device, state="stale") if device.state == "live" else device for device in devices)


def _completed(found: NodeSnapshot, last: NodeSnapshot) -> NodeSnapshot:
    """With what is known from before, where a new process leaves the driver alone or has no answer from it yet."""
    if found.problem:
        return found
    if not found.devices:
        return replace(found, driver=last.driver, cuda=last.cuda, devices=_stale(last.devices), problem=last.problem)
    known = {device.index: device for device in _stale(last.devices)}
    unknown = {device.index for device in found.devices if device.state == "stale" and device.uuid is None}
    return replace(found, devices=tuple(known.get(d.index, d) if d.index in unknown else d for d in found.devices))


def _step(delays: Sequence[float], deaths: int) -> float:
    return delays[min(deaths, len(delays)) - 1]
