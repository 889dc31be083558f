"""What the screen costs and how fast it answers, measured in a real pty; limits are those of DESIGN sections 4 and 8.

Run: python -m tests.benchmarks.screen
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from tests.pty.terminal import Terminal

STARTS = 9
FIRST_PAINT_S = 0.5
PRESSES = 200
ANSWER_S = 0.05
TIMED_S = 20.0
WRITES_PER_S = 2.0
WINDOW_S = 0.9
"""A second, less what a timer of the screen may come early or late."""
BURST_GAP_S = 0.03
"""Pieces that follow each other faster belong to one repaint."""
CPU_S_PER_MINUTE = 3.0
"""One twentieth of a core: with the machine's other noise well below the 3 % that count as a difference."""
TRIAL_S = 180.0
WORKLOAD = """
import time, torch
class Workload:
    global_batch_size = 8
    def __init__(self, sleep=1.0): self.sleep = float(sleep)
    def build_model(self): return torch.nn.Linear(4, 1)
    def build_dataset(self): return torch.utils.data.TensorDataset(torch.randn(512, 4))
    def loss(self, model, batch):
        time.sleep(self.sleep)
        return model(batch[0]).pow(2).mean()
"""


def start(folder: Path, sleep_s: float) -> Terminal:
    """The screen on a workload whose loss takes so long."""
    (folder / "sleeper.py").write_text(WORKLOAD)
    study = ("--study", folder / f"study-{sleep_s}", "--stall-timeout", "1h")
    return Terminal(("./sleeper.py", "-D", f"sleep={sleep_s}", "--device", "cpu", *study), folder)


def arrival_s(terminal: Terminal, condition: Callable[[str], bool], limit_s: float = 10.0) -> float:
    """When what makes the condition true was read, in monotonic seconds."""
    deadline = time.monotonic() + limit_s
    while not condition(terminal.text()):
        assert time.monotonic() < deadline, terminal.text()
        time.sleep(0.0005)
    return terminal.writes[-1][0]


def report(what: str, figure: str, passed: bool) -> bool:
    """Print one line; True for a miss."""
    print(f"{what}: {figure}: {'PASS' if passed else 'FAIL'}", flush=True)
    return not passed


def first_paint(folder: Path) -> bool:
    """From the start of the interpreter to all panels and the keys at the bottom."""
    times, worked = [], []
    for _ in range(STARTS):
        with closing(start(folder, 1.0)) as terminal:
            seen = arrival_s(terminal, lambda shown: "Leaderboard" in shown and "q quit" in shown)
            worked.append(cpu_s(terminal.process.pid))
            times.append(seen - terminal.started_s)
    median = statistics.median(times)
    figure = f"median {median:.2f} s ({min(times):.2f} to {max(times):.2f}, {STARTS} starts, limit {FIRST_PAINT_S} s)"
    figure += f", processor time {statistics.median(worked):.2f} s ({min(worked):.2f} to {max(worked):.2f})"
    return report("first paint", figure, median < FIRST_PAINT_S)


def answers(folder: Path) -> bool:
    """From a key to the changed value on the screen, while a trial hangs in its loss."""
    dice = random.Random(0)
    times = []

    def changed(shown: str) -> bool:
        return "▸ bf16" in shown

    with closing(start(folder, 1e6)) as terminal:
        terminal.wait_for("8 x 1", "Idle", limit_s=TRIAL_S)
        terminal.keys("r")
        terminal.wait_for("Running: trial", "warming up", limit_s=TRIAL_S)
        for number in range(PRESSES):
            time.sleep(dice.uniform(0.03, 0.2))
            wanted = number % 2 == 0
            pressed = time.monotonic()
            terminal.keys("right" if wanted else "left")
            times.append(arrival_s(terminal, changed if wanted else lambda shown: not changed(shown)) - pressed)
        assert "Running: trial" in terminal.text()
    times.sort()
    p50, p95 = times[len(times) // 2], times[int(len(times) * 0.95)]
    late = sum(t > ANSWER_S for t in times)
    figure = f"median {p50 * 1e3:.0f} ms, 95 % within {p95 * 1e3:.0f} ms, longest {times[-1] * 1e3:.0f} ms"
    figure += f" ({PRESSES} presses, {late} of them over {ANSWER_S * 1e3:.0f} ms)"
    return report("key to changed screen, trial hanging", figure, p95 < ANSWER_S)


def bursts(writes: Sequence[tuple[float, int]]) -> list[float]:
    """When each repaint began."""
    begins = []
    last = -1.0
    for at, _ in writes:
        if at - last > BURST_GAP_S:
            begins.append(at)
        last = at
    return begins


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def while_timed(folder: Path) -> int:
    """What the screen writes and computes while blocks are timed."""
    misses = 0
    with closing(start(folder, 3.5)) as terminal:
        terminal.wait_for("8 x 1", "Idle", limit_s=TRIAL_S)
        terminal.keys("r")
        terminal.wait_for("measuring", limit_s=TRIAL_S)
        time.sleep(1.0)
        pids = {"screen": terminal.process.pid}
        pids |= {word: terminal.process_with(word) for word in ("engine.server", "sampler")}
        began, before, first = time.monotonic(), {name: cpu_s(pid) for name, pid in pids.items()}, len(terminal.writes)
        while time.monotonic() < began + TIMED_S:
            time.sleep(0.1)
        lasted = time.monotonic() - began
        spent = {name: (cpu_s(pid) - before[name]) / lasted * 60 for name, pid in pids.items()}
        assert "measuring" in terminal.text(), terminal.text()
        writes = terminal.writes[first:]
    begins = bursts(writes)
    rate = len(begins) / lasted
    most = max((sum(a <= b < a + WINDOW_S for b in begins) for a in begins), default=0)
    figure = f"{rate:.2f} repaints per s, at most {most} in any {WINDOW_S} s"
    figure += f", {sum(n for _, n in writes) / lasted:.0f} bytes/s ({lasted:.0f} s, limit {WRITES_PER_S:.0f} per s)"
    misses += report("written while a block is timed", figure, rate <= WRITES_PER_S and most <= WRITES_PER_S)
    figure = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items())
    misses += report(
        "processor time per minute while a block is timed",
        f"{figure} (limit for the screen {CPU_S_PER_MINUTE:.0f} s)",
        spent["screen"] < CPU_S_PER_MINUTE,
    )
    return misses


def main() -> int:
    """Print one line a figure; the exit code is the number of misses."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"load of this machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        return first_paint(folder) + answers(folder) + while_timed(folder)


if __name__ == "__main__":
    sys.exit(main())
