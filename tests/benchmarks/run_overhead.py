"""What `run` adds to a real job once it has looked at its first steps: its hooks there and away, in one process.

Run: python -m tests.benchmarks.run_overhead [--cycles MOST] [NAME...]     (the loops of `by_hand.py`; default: 1ms)

Blocks with, without, without, with; between them torch's hooks and the replaced functions are put in place or away.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator

from gputune_tui.domain.job import Job, MeasurePlan, ScriptOrder
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from tests.benchmarks.by_hand import CASES, Case, training_of
from tests.benchmarks.fidelity import MOST_CYCLES, ORDER, is_one


def log_ratios(case: Case) -> Iterator[float]:
    """Of each cycle: log throughput with the hooks, less that without."""
    import torch.optim.optimizer as optimizers

    from gputune_tui.trainer.script import arming
    from gputune_tui.trainer.script.patches import Patches

    order = ScriptOrder(("num_workers",), "site of no loader", "loader")
    job = Job("run", WorkloadRef("", command=("python",)), settings=TrainSettings(), script=order)
    hooks = optimizers._global_optimizer_post_hooks
    before = dict(hooks)
    patches = Patches()
    arming._arm_run(job, patches)
    with_run = dict(hooks)
    patches.undo()
    hooks.clear()
    hooks.update(before)
    training = training_of(case)
    training.steps(20)
    _, elapsed_s = training.steps(20)
    steps = max(1, math.ceil(MeasurePlan().block_s / (elapsed_s / 20)))
    while True:
        rates: dict[bool, list[float]] = {True: [], False: []}
        for is_run in ORDER:
            hooks.clear()
            hooks.update(with_run if is_run else before)
            samples, elapsed_s = training.steps(steps)
            rates[is_run].append(math.log(samples / elapsed_s))
        yield (sum(rates[True]) - sum(rates[False])) / 2


def main() -> int:
    """The exit code is the number of misses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycles", type=int, default=MOST_CYCLES)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    names = given.names or ["1ms"]
    return sum(not is_one(f"{name}: under run over by itself", log_ratios(CASES[name]), given.cycles) for name in names)


if __name__ == "__main__":
    sys.exit(main())
