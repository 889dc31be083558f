"""Comparisons and searches played on a simulated machine through the product's own rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gputune_tui.domain.job import MeasurePlan
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import Block, Launch, MemoryPeaks, Trial, TrialState
from gputune_tui.engine.comparing import BLOCK_S, CYCLE, CYCLES, MOST_PAIRS, judged
from gputune_tui.engine.searching import CONFIRMED_LAUNCHES
from gputune_tui.ranking.leaderboard import Leaderboard, leaderboard
from gputune_tui.ranking.statistics import PairedLaunch, Verdict
from tests.benchmarks.machine import Machine, Noise, PlayedLaunch

MARGIN = 0.03


@dataclass(frozen=True)
class Played:
    """How a comparison ended."""

    verdict: Verdict
    pairs: int
    elapsed_s: float


def play_pair(machine: Machine, slower: Sequence[float], number: int, resident: bool) -> PairedLaunch:
    """One launch of each arm, blocks and starts in the product's order."""
    order = (0, 1) if number % 2 else (1, 0)
    blocks: tuple[list[Block], list[Block]] = ([], [])
    if resident:
        launches = {arm: PlayedLaunch(machine, slower[arm]) for arm in order}
        for _ in range(CYCLES):
            for turn in CYCLE:
                arm = order[turn]
                blocks[arm].append(launches[arm].block(BLOCK_S))
        machine.wait(machine.noise.end_s)
    else:
        for arm in order:
            launch = PlayedLaunch(machine, slower[arm])
            blocks[arm].extend(launch.block(MeasurePlan().block_s) for _ in range(2 * CYCLES))
            machine.wait(machine.noise.end_s)
    return PairedLaunch(tuple(blocks[0]), tuple(blocks[1]), resident)


def play(noise: Noise, random: Random, b_is_faster: float = 0.0, resident: bool = True) -> Played:
    """A whole comparison, from its request on."""
    machine = Machine(noise, random)
    slower = (1 + b_is_faster, 1.0)
    pairs: list[PairedLaunch] = []
    said: Verdict = "undecided"
    while said == "undecided" and len(pairs) < MOST_PAIRS:
        pairs.append(play_pair(machine, slower, len(pairs) + 1, resident))
        said = judged(pairs, MARGIN)[1]
    return Played(said, len(pairs), machine.time_s)


def play_search(noise: Noise, random: Random, settings: int, slower_by: float) -> Leaderboard:
    """A search over equal settings, confirmed as a search is; the machine becomes slower after half of them."""
    plan = MeasurePlan()
    launch_s = noise.ready_s + plan.blocks * (plan.block_s + noise.order_s)
    machine = Machine(noise, random, slower_from_s=settings / 2 * launch_s, slower_by=slower_by)

    def launched() -> Launch:
        launch = PlayedLaunch(machine)
        blocks = tuple(launch.block(plan.block_s, settle_steps=0) for _ in range(plan.blocks))
        return Launch(blocks, (), 6, MemoryPeaks(device_peak_bytes=1))

    launches = {number: [launched()] for number in range(1, settings + 1)}

    def board() -> Leaderboard:
        trials = [
            Trial(number, TrainSettings(micro_batch_size=number), TrialState.COMPLETE, launches=tuple(done))
            for number, done in launches.items()
        ]
        return leaderboard(trials, MemoryBudget(1 << 30, None, ""), None)

    while (best := board().best) is not None and len(launches[best.trial.id]) < CONFIRMED_LAUNCHES:
        launches[best.trial.id] += [
            launched() for _ in range(CONFIRMED_LAUNCHES - len(launches[best.trial.id]))
        ]  # fmt: skip
    return board()
