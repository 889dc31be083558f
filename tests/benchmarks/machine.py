"""A machine as noisy as a real one, on which launches can be played: fitted figures in, blocks and seconds out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from gputune_tui.domain.plain import from_plain
from gputune_tui.domain.trial import Block

FITTED = Path(__file__).with_name("machine.json")


@dataclass(frozen=True)
class Wander:
    """A level that strays and comes back (Ornstein-Uhlenbeck), in log step time."""

    sd: float
    """In the long run."""
    back_s: float
    """Time after which 1/e of a deviation is left."""


@dataclass(frozen=True)
class Noise:
    """What was fitted; deviations are those of log step time."""

    step_s: float
    step_sd: float
    """Of single steps around the level of their block, disturbed ones left out."""
    step_correlation: float
    """Between a step and the next."""
    spike_fraction: float
    """Steps that are disturbed, and by how much on average."""
    spike_size: float
    machine: tuple[Wander, ...]
    """Levels that all processes share."""
    own: tuple[Wander, ...]
    """Levels of a launch's own; what starts with a launch and stays is `launch_sd`."""
    launch_sd: float
    ready_s: float
    """From the request of a launch to its first order."""
    end_s: float
    """From the last order of a pair until both launches are gone."""
    order_s: float
    """From the end of a block to the next one's first step."""

    def scaled(self, factor: float) -> Noise:
        """The same machine with all deviations so many times as large."""

        def of(levels: tuple[Wander, ...]) -> tuple[Wander, ...]:
            return tuple(Wander(level.sd * factor, level.back_s) for level in levels)

        return replace(
            self,
            step_sd=self.step_sd * factor,
            spike_size=self.spike_size * factor,
            machine=of(self.machine),
            own=of(self.own),
            launch_sd=self.launch_sd * factor,
        )


def fitted(path: Path = FITTED) -> Noise:
    """The stored figures."""
    return from_plain(Noise, json.loads(path.read_text(encoding="utf-8"))["noise"])


class _Level:
    """The current value of a Wander."""

    def __init__(self, wander: Wander, step_s: float, random: Random) -> None:
        self._wander, self._random = wander, random
        self.value = random.gauss(0, wander.sd)
        self._kept = math.exp(-step_s / wander.back_s)
        self._fresh = wander.sd * math.sqrt(1 - self._kept**2)

    def step(self) -> None:
        """A step's time passes (its exact length matters little)."""
        self.value = self._kept * self.value + self._fresh * self._random.gauss(0, 1)

    def wait(self, seconds: float) -> None:
        kept = math.exp(-seconds / self._wander.back_s)
        self.value = kept * self.value + self._wander.sd * math.sqrt(1 - kept**2) * self._random.gauss(0, 1)


class Machine:
    """The clock and the level that all launches share."""

    def __init__(self, noise: Noise, random: Random, slower_from_s: float = math.inf, slower_by: float = 0.0) -> None:
        self.noise, self.random = noise, random
        self.time_s = 0.0
        self._levels = [_Level(wander, noise.step_s, random) for wander in noise.machine]
        self._slower_from_s, self._slower_by = slower_from_s, slower_by

    def level(self) -> float:
        """Log step time now, against the machine's mean."""
        slow = math.log1p(self._slower_by) if self.time_s >= self._slower_from_s else 0.0
        return slow + sum(level.value for level in self._levels)

    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.time_s += seconds
        for level in self._levels:
            level.wait(seconds)

    def pass_step(self, seconds: float) -> None:
        """The time of a step passes."""
        self.time_s += seconds
        for level in self._levels:
            level.step()


@dataclass
class PlayedLaunch:
    """One launch of a setting whose steps take `slower` times as long."""

    machine: Machine
    slower: float = 1.0
    offset: float = field(init=False)

    def __post_init__(self) -> None:
        machine = self.machine
        self.offset = math.log(self.slower) + machine.random.gauss(0, machine.noise.launch_sd)
        self._own = [_Level(wander, machine.noise.step_s, machine.random) for wander in machine.noise.own]
        self._last_s = machine.time_s
        self._step_noise = 0.0
        machine.wait(machine.noise.ready_s)

    def block(self, block_s: float, settle_steps: int = 1) -> Block:
        """Some steps that do not count, then a timed block of whole steps."""
        times_s = self.step_times_s(block_s, settle_steps)
        return Block(len(times_s), len(times_s), sum(times_s))

    def step_times_s(self, block_s: float, settle_steps: int = 1) -> list[float]:
        """The steps of such a block."""
        machine, noise = self.machine, self.machine.noise
        machine.wait(noise.order_s)
        away_s = machine.time_s - self._last_s
        for level in self._own:
            level.wait(away_s)
        for _ in range(settle_steps):
            self._step()
        steps = max(1, math.ceil(block_s / (noise.step_s * self.slower)))
        times_s = [self._step() for _ in range(steps)]
        self._last_s = machine.time_s
        return times_s

    def _step(self) -> float:
        machine, noise, random = self.machine, self.machine.noise, self.machine.random
        rho = noise.step_correlation
        self._step_noise = rho * self._step_noise + math.sqrt(1 - rho**2) * random.gauss(0, noise.step_sd)
        spike = random.expovariate(1 / noise.spike_size) if random.random() < noise.spike_fraction else 0.0
        own = sum(level.value for level in self._own)
        seconds = noise.step_s * math.exp(machine.level() + self.offset + own + self._step_noise + spike)
        for level in self._own:
            level.step()
        machine.pass_step(seconds)
        return seconds


def as_document(noise: Noise, told: Mapping[str, object]) -> str:
    """What is stored."""
    from gputune_tui.domain.plain import to_plain

    return json.dumps({"noise": to_plain(noise), "measured": told}, indent=1) + "\n"
