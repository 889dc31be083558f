"""Races over simulated launches: speed, the launch's own offset, noise of blocks, a drifting machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import Launch
from gputune_tui.search.race import Race, RaceRules
from tests.ranking.make import launch

BLOCKS = 8


@dataclass(frozen=True)
class Machine:
    """Standard deviations of log throughput, and the drift from one launch to the next."""

    launch_sd: float = 0.035
    block_sd: float = 0.03
    drift_per_launch: float = 0.0

    def launch(self, log_speed: float, number: int, random: Random) -> Launch:
        """The `number`-th launch since the machine was started."""
        centre = log_speed + random.gauss(0, self.launch_sd) + self.drift_per_launch * number
        return launch(*(100 * math.exp(centre + random.gauss(0, self.block_sd)) for _ in range(BLOCKS)))


@dataclass
class Ran:
    """A race that is over."""

    race: Race
    settings: list[TrainSettings]
    """In the order of the speeds that were given."""
    launches: int
    dropped: list[TrainSettings]
    """As slower."""

    def standing(self, index: int) -> str:
        """How the setting at `index` ended."""
        return next(p.standing for p in self.race.standing() if p.settings == self.settings[index])


def run_race(
    log_speeds: Sequence[float],
    seed: int,
    machine: Machine | None = None,
    rules: RaceRules | None = None,
) -> Ran:
    """Race settings of these log speeds to the end; the order of the first heat is random."""
    random, machine = Random(seed), machine or Machine()
    settings = [TrainSettings(micro_batch_size=index + 1) for index in range(len(log_speeds))]
    speeds = dict(zip(settings, log_speeds, strict=True))
    order = list(settings)
    random.shuffle(order)
    race = Race(order, rules)
    launches, dropped = 0, list[TrainSettings]()
    while (wanted := race.ask()) is not None:
        made = machine.launch(speeds[wanted.settings], launches, random)
        launches += 1
        dropped += [p.settings for p in race.tell([replace(made, round=f"r.{wanted.round}")]) if p.standing == "slower"]
    return Ran(race, settings, launches, dropped)
