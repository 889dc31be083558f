"""What a trial's throughput loses when the training writes much to its output, against the same training in silence.

Run: python -m tests.benchmarks.output [CYCLES]

One resident trial of `lm` tiny; in half of its blocks each step writes to stdout and stderr without a newline, tens of
megabytes in all, by far more than the log keeps and than a pipe holds.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

from gputune_tui.domain.job import MeasurePlan
from gputune_tui.domain.protocol import Finish
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trial.launcher import LOG_CAP_BYTES, LocalLauncher
from gputune_tui.trial.supervisor import Limits, TrialRun, become_subreaper
from tests.benchmarks.ratios import LEAST_CYCLES, ratio_interval
from tests.benchmarks.resident import log_ratios, wait_ready
from tests.benchmarks.start import lm_tiny

CYCLES = 200
BLOCK_S = 0.15
BYTES_PER_STEP = 1 << 14
"""To each of the two streams."""
WRITTEN_BYTES = 50_000_000
WITHIN = 0.03
SOURCE = f"""
import os
from workloads.lm import Workload as Lm

class Workload(Lm):
    def __init__(self):
        super().__init__(size="tiny")

    def loss(self, model, batch):
        if os.path.exists({{flag!r}}):
            for fd in (1, 2):
                os.write(fd, b"x" * {BYTES_PER_STEP})
        return super().loss(model, batch)
"""


def main() -> int:
    """Print the ratio with its interval; exit code 1 where writing may cost more than 3 %, or the log grew past it."""
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else CYCLES
    become_subreaper()
    with tempfile.TemporaryDirectory() as folder:
        flag, source = Path(folder) / "write", Path(folder) / "writing.py"
        source.write_text(SOURCE.format(flag=str(flag)))
        job = replace(lm_tiny(), workload=WorkloadRef(f"{source}:Workload"), paced=True)
        job = replace(job, plan=MeasurePlan(block_s=BLOCK_S, breakdown_steps=0))
        environment = {**os.environ, "PYTHONPATH": os.getcwd()}
        run = TrialRun(LocalLauncher(environment).launch(job, Path(folder) / "trial"), Limits())
        try:
            wait_ready(run)
            ratios = list(islice(log_ratios(run, lambda on: flag.touch() if on else flag.unlink(True)), cycles))
            run.order(Finish())
            while not run.finished:
                run.poll()
            steps = sum(block.steps for block in run.seen.blocks) // 2
            log_bytes = (Path(folder) / "trial" / "log.txt").stat().st_size
        finally:
            run.close()
    found, written = ratio_interval(ratios), 2 * BYTES_PER_STEP * steps
    passed = found.low >= 1 - WITHIN and found.count >= LEAST_CYCLES and written >= WRITTEN_BYTES
    print(
        f"throughput while writing over in silence: {found}, {found.count} cycles, {written / 1e6:.0f} MB written: "
        f"{'PASS' if passed else 'FAIL'}"
    )
    capped = log_bytes < 2 * LOG_CAP_BYTES + 4096
    print(f"log of that: {log_bytes / 1e6:.1f} MB: {'PASS' if capped else 'FAIL'}")
    return (not passed) + (not capped)


if __name__ == "__main__":
    sys.exit(main())
