"""How long a trial of `lm` tiny takes to start, forked from the warm host and as a fresh process, in turn.

Run: python -m tests.benchmarks.start [LAUNCHES]
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from gputune_tui.domain.environment import intra_op_threads
from gputune_tui.domain.job import Job, MeasurePlan
from gputune_tui.domain.protocol import Hello, Phase
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import TrialState
from gputune_tui.telemetry.host import host_limits
from gputune_tui.trial.launcher import Launcher, LocalLauncher
from gputune_tui.trial.supervisor import Limits, TrialRun, become_subreaper
from gputune_tui.trial.warm_launcher import WarmLauncher

LAUNCHES = 10
MEMORY_LAUNCHES = 3
BODY_RATIO = 0.1
MEASURED_RATIO = 0.33
PEAK_BYTES = 8 << 20
"""Launches of one kind differ by up to 4 MiB."""


@dataclass(frozen=True)
class Started:
    """Seconds from the request to the trial's first own line and to its first measured step, and its memory."""

    body_s: float
    measured_s: float
    overhead_bytes: int = 0
    peak_bytes: int = 0


def lm_tiny() -> Job:
    """The job that all launches run."""
    return Job(
        kind="trial",
        workload=WorkloadRef("lm", {"size": "tiny"}),
        settings=TrainSettings(micro_batch_size=8),
        global_batch_size=8,
        threads=intra_op_threads(host_limits().effective_cpus),
    )


def start(launcher: Launcher, job: Job, folder: Path, to_the_end: bool = False) -> Started:
    """Launch once, and stop when the first step is measured unless its memory is asked for."""
    began = time.perf_counter()
    run = TrialRun(launcher.launch(job, folder), Limits())
    body_s = measured_s = 0.0
    while not run.finished and (to_the_end or not measured_s):
        for event in run.poll():
            if isinstance(event, Hello):
                body_s = time.perf_counter() - began
            elif isinstance(event, Phase) and event.name == "measure" and not measured_s:
                measured_s = time.perf_counter() - began
    run.close()
    assert not any("fresh process" in note for note in run.seen.notes), run.seen.notes
    if not to_the_end:
        assert measured_s, run.failure
        return Started(body_s, measured_s)
    assert run.state is TrialState.COMPLETE, run.failure
    overhead, peak = run.seen.fixed_overhead_bytes, run.seen.memory.device_peak_bytes
    assert overhead is not None
    assert peak is not None
    return Started(body_s, measured_s, overhead, peak)


def compare(what: str, warm: list[float], fresh: list[float], limit: float) -> bool:
    """Print the medians and their ratio; True where it is within the limit."""
    ratio = statistics.median(warm) / statistics.median(fresh)
    passed = ratio <= limit
    print(
        f"request to {what}: warm {statistics.median(warm):.3f} s ({min(warm):.3f} to {max(warm):.3f}), "
        f"fresh {statistics.median(fresh):.3f} s ({min(fresh):.3f} to {max(fresh):.3f}), {len(warm)} launches each: "
        f"ratio {ratio:.3f}, at most {limit}: {'PASS' if passed else 'FAIL'}"
    )
    return passed


def agree(what: str, warm: list[int], fresh: list[int]) -> bool:
    """Print the medians and their distance; True where it is small."""
    off = statistics.median(warm) - statistics.median(fresh)
    passed = abs(off) <= PEAK_BYTES
    figures = [" ".join(f"{value / 2**20:.1f}" for value in values) for values in (warm, fresh)]
    print(f"{what}: warm {figures[0]} MiB, fresh {figures[1]} MiB, {off / 2**20:+.1f}: {'PASS' if passed else 'FAIL'}")
    return passed


def main(launches: int = LAUNCHES) -> int:
    """Print one line per figure; the exit code is the number of misses."""
    become_subreaper()
    job = lm_tiny()
    warm_launcher, fresh_launcher = WarmLauncher(), LocalLauncher()
    starts: dict[str, list[Started]] = {"warm": [], "fresh": []}
    ends: dict[str, list[Started]] = {"warm": [], "fresh": []}
    launchers: dict[str, Launcher] = {"warm": warm_launcher, "fresh": fresh_launcher}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.perf_counter()
        while not warm_launcher.is_ready(job, 0.1):
            pass
        print(f"the host was ready after {time.perf_counter() - began:.1f} s, once per session; {os.cpu_count()} CPUs")
        for number in range(launches):
            for kind in ("warm", "fresh") if number % 2 else ("fresh", "warm"):
                starts[kind].append(start(launchers[kind], job, folder / f"{kind}{number}"))
        short = replace(job, plan=MeasurePlan(blocks=2, min_blocks=2, extra_blocks=0))
        for number in range(MEMORY_LAUNCHES):
            for kind in launchers:
                ends[kind].append(start(launchers[kind], short, folder / f"{kind}end{number}", to_the_end=True))
        warm_launcher.close()
    bodies = [[one.body_s for one in starts[kind]] for kind in launchers]
    measured = [[one.measured_s for one in starts[kind]] for kind in launchers]
    overheads = [[one.overhead_bytes for one in ends[kind]] for kind in launchers]
    peaks = [[one.peak_bytes for one in ends[kind]] for kind in launchers]
    passed = [
        compare("trial body", bodies[0], bodies[1], BODY_RATIO),
        compare("first measured step", measured[0], measured[1], MEASURED_RATIO),
        agree("fixed overhead", overheads[0], overheads[1]),
        agree("peak memory", peaks[0], peaks[1]),
    ]
    return passed.count(False)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
