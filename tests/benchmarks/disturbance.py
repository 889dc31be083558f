"""What a running `gputune-tui monitor` takes from a trial: its throughput with the monitor on against stopped.

Run: python -m tests.benchmarks.disturbance [CYCLES]

One resident trial of `lm` tiny; its blocks are taken off, on, on, off, the monitor being stopped by SIGSTOP and let go
by SIGCONT in between. The interval is that of Student's t over the cycles' log ratios.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from gputune_tui.domain.job import MeasurePlan
from gputune_tui.domain.protocol import Finish
from gputune_tui.trial.launcher import LocalLauncher
from gputune_tui.trial.supervisor import Limits, TrialRun, become_subreaper
from tests.benchmarks.ratios import LEAST_CYCLES, ratio_interval
from tests.benchmarks.resident import ORDER, log_ratios, wait_ready
from tests.benchmarks.start import lm_tiny
from tests.pty.terminal import Terminal

CYCLES = 500
BLOCK_S = 0.5
"""A tick that fell due while the monitor was stopped comes as soon as it is let go, so that in its blocks it ticks more
often than its interval says: in a second of every two up to twice, in blocks of 0.15 s three times as often."""
HALF_WIDTH = 0.01


def toggle(pids: list[int], runs: bool) -> None:
    """Stop the monitor's processes, or let them go on."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT if runs else signal.SIGSTOP)


def main() -> int:
    """Print the ratio with its interval; exit code 1 where it leaves out 1 or is too wide."""
    cycles = int(sys.argv[1]) if len(sys.argv) > 1 else CYCLES
    become_subreaper()
    plan = MeasurePlan(block_s=BLOCK_S, breakdown_steps=0)
    job = replace(lm_tiny(), paced=True, plan=plan)
    with tempfile.TemporaryDirectory() as folder, closing(Terminal(("monitor",), Path(folder))) as monitor:
        monitor.wait_for("CPU")
        monitor.is_drawing = False
        pids = list(monitor.processes())
        run = TrialRun(LocalLauncher().launch(job, Path(folder) / "trial"), Limits())
        try:
            wait_ready(run)
            time.sleep(3)  # the monitor's own start is no part of it
            ratios = list(islice(log_ratios(run, lambda runs: toggle(pids, runs)), cycles))
            toggle(pids, True)
            replaced = [pid for pid in pids if not Path(f"/proc/{pid}").exists()]
            run.order(Finish())
        finally:
            run.close()
    if replaced:
        print("FAIL  a process of the monitor was replaced meanwhile, so not all of it was toggled")
        return 1
    found = ratio_interval(ratios)
    passed = found.holds_one and found.half_width_fraction < HALF_WIDTH and found.count >= LEAST_CYCLES
    print(
        f"throughput with the monitor on over off: {found}, "
        f"{found.count} cycles of {len(ORDER)} blocks: {'PASS' if passed else 'FAIL'}"
    )
    return not passed


if __name__ == "__main__":
    sys.exit(main())
