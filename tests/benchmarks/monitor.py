"""What `gputune-tui monitor` costs beside nvitop and nvtop: `python -m tests.benchmarks.monitor [--seconds 65]`.

Needs a C compiler and `GPUTUNE_FAKE_NVML`, the folder of a fake driver library with `Makefile`, `measure_tui.py` and
the scenarios m1, m8 and m16 (1, 8 and 16 busy GPUs with moving values). A peer that is not found on PATH, or by NVITOP
and NVTOP, is skipped. The programs are measured one after the other at each size, so that they share the machine's
state; figures of a busy machine say little, ratios more.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.pty.terminal import Terminal

OURS = [sys.executable, "-m", "gputune_tui", "monitor"]
SIZE = "120x40"
FIRST_VALUE = r"\d+W? ?/ ?700"
"""A power figure of the scenarios, as each of the programs writes it."""
MOST_BYTES_PER_S, MOST_LOW_BYTES_PER_S = 3000.0, 1500.0
MOST_PSS_KIB = 90 * 1024
FIRST_VALUE_MS, FIRST_VALUE_TIMES = 600.0, 4.0
MORE_STARTS = 4
"""One start tells little: on an idle machine of two virtual cores they differ by half."""
KEY_MS = 50.0
KEY_PRESSES = 20
FOUR = "gpu 0-3 name=NVIDIA H100 80GB HBM3 mem_total_mib=81559 mem_used_mib=60000 util=wave power_w=450 sm_clock=1755\n"
ONE_SICK = {"hangs": "gpu 1 state=step:4:ok:hang\n", "takes 100 ms a call": "gpu 1 latency_us=100000\n"}
EVERY_SLOW = "latency_us=3000\n"


@dataclass
class Verdicts:
    """Prints lines and counts those that fail."""

    failed: int = 0

    def say(self, is_good: bool, text: str) -> None:
        self.failed += not is_good
        print(f"{'PASS' if is_good else 'FAIL'}  {text}", flush=True)


def peers() -> dict[str, list[str]]:
    """Commands of the peers that are there."""
    found = {}
    for name in ("nvitop", "nvtop"):
        path = os.environ.get(name.upper()) or shutil.which(name)
        if path:
            found[name] = [path]
        else:
            print(f"SKIP  {name} is not installed", flush=True)
    return found


def build(folder: Path) -> Path:
    """A copy of the fake driver, built."""
    source = os.environ.get("GPUTUNE_FAKE_NVML")
    if not source:
        sys.exit("GPUTUNE_FAKE_NVML does not name the folder of a fake driver library")
    made = folder / "driver"
    shutil.copytree(source, made)
    subprocess.run(["make", "-s"], cwd=made, check=True)
    return made


def run_once(driver: Path, scenario: str, seconds: float, command: list[str], warmup_s: float = 5.0) -> dict[str, Any]:
    """What the measuring program says of one run."""
    out = driver / "out.json"
    how = ["--scenario", scenario, "--size", SIZE, "--seconds", str(seconds), "--warmup", str(warmup_s)]
    how += ["--marker", FIRST_VALUE]
    subprocess.run(
        [sys.executable, "measure_tui.py", *how, "--out", str(out), "--", *command],
        cwd=driver,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    found: dict[str, Any] = json.loads(out.read_text())
    if found["exited_early"]:
        sys.exit(f"{command} ended by itself with {found['exit_code']}")
    return found


def measure(driver: Path, scenario: str, seconds: float, command: list[str]) -> dict[str, Any]:
    """Figures of one run; the time to the first value is the median of it and some short ones."""
    found = run_once(driver, scenario, seconds, command)
    starts = [found, *(run_once(driver, scenario, 1.0, command, 1.0) for _ in range(MORE_STARTS))]
    times = [one["marker_ms"] for one in starts if one["marker_ms"]]
    found["marker_ms"] = statistics.median(times) if len(times) == len(starts) else None
    print(
        f"      {Path(command[0]).name if len(command) == 1 else 'gputune-tui':<12} {scenario:<4} "
        f"{found['cpu_steady_pct'] * 0.6:5.2f} CPU s/min  {found['bytes_per_s']:6.0f} B/s  "
        f"{found['pss_kib'] / 1024:5.1f} MiB PSS  first value {found['marker_ms'] or float('nan'):5.0f} ms "
        f"({min(times, default=float('nan')):.0f} to {max(times, default=float('nan')):.0f})  "
        f"start {found['startup_cpu_s']:4.2f} CPU s  (machine busy {found['others_busy_pct']:.0f} %)",
        flush=True,
    )
    return found


def compare(driver: Path, seconds: float, verdicts: Verdicts) -> None:
    """Ours beside the peers at each size."""
    known = peers()
    for scenario in ("m1", "m8", "m16"):
        ours = measure(driver, scenario, seconds, OURS)
        others = {name: measure(driver, scenario, seconds, command) for name, command in known.items()}
        if "nvitop" in others:
            peer = others["nvitop"]
            ratio = ours["cpu_steady_pct"] / peer["cpu_steady_pct"]
            verdicts.say(ratio <= 1.0, f"{scenario}: {ratio:.2f} of nvitop's CPU (at most 1, aim 0.5)")
            if ours["marker_ms"] and peer["marker_ms"]:
                times = ours["marker_ms"] / peer["marker_ms"]
                verdicts.say(times < FIRST_VALUE_TIMES, f"{scenario}: first value after {times:.1f} x nvitop's time")
        first_ms = ours["marker_ms"] or float("inf")
        verdicts.say(first_ms < FIRST_VALUE_MS, f"{scenario}: first value after {first_ms:.0f} ms")
        verdicts.say(ours["pss_kib"] < MOST_PSS_KIB, f"{scenario}: {ours['pss_kib'] / 1024:.0f} MiB PSS of the tree")
        if scenario == "m8":
            verdicts.say(ours["bytes_per_s"] < MOST_BYTES_PER_S, f"m8: {ours['bytes_per_s']:.0f} B/s with graphs")
    low = measure(driver, "m8", seconds, [*OURS, "--low-bandwidth"])
    verdicts.say(low["bytes_per_s"] < MOST_LOW_BYTES_PER_S, f"m8 --low-bandwidth: {low['bytes_per_s']:.0f} B/s")


def key_times_ms(terminal: Terminal) -> Iterator[float]:
    """From a key to its answer on the screen: hold the display and let it go, sort by another column."""
    for number in range(KEY_PRESSES):
        for key, words, is_there in (("z", "paused", True), ("z", "paused", False), (">", "by GPU memory", True)):
            begin_s = time.monotonic()
            terminal.keys(key)
            while (words in terminal.text()) != is_there:
                time.sleep(0.001)
            yield (time.monotonic() - begin_s) * 1000
            time.sleep(0.03 + number % 7 / 50)
        terminal.keys("<")
        terminal.wait_gone_from_screen("by GPU memory")


def changes_in_10_s(terminal: Terminal) -> int:
    """How often the first GPU's utilisation was another."""
    seen: list[str] = []
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        shown = re.findall(r"UTL [^U]*?(\d+) %", terminal.text())[:1]
        if shown and seen[-1:] != shown:
            seen += shown
        time.sleep(0.02)
    return len(seen) - 1


def sick_drivers(driver: Path, verdicts: Verdicts) -> None:
    """Keys, and the other GPUs' refreshes, while calls hang or take long."""
    scenarios = {f"one GPU of four {how}": FOUR + line for how, line in ONE_SICK.items()}
    scenarios["every call takes 3 ms"] = EVERY_SLOW + FOUR
    for name, scenario in scenarios.items():
        path = driver / "scenario"
        path.write_text(scenario)
        environment = {"LD_LIBRARY_PATH": str(driver / "lib"), "FAKE_NVML_SCENARIO": str(path)}
        terminal = Terminal(["monitor"], driver, environment=environment)
        try:
            terminal.wait_for("H100", "stale" if "hangs" in name else "1755 MHz")
            times = sorted(key_times_ms(terminal))
            middle, late = times[len(times) // 2], times[int(len(times) * 0.95)]
            verdicts.say(late < KEY_MS, f"{name}: keys answered in {middle:.0f} ms, 95 % within {late:.0f} ms")
            changes = changes_in_10_s(terminal)
            verdicts.say(changes >= 8, f"{name}: the first GPU's figure changed {changes} times in 10 s")
        finally:
            terminal.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=65.0, help="of each run, 5 of them warm-up")
    options = parser.parse_args()
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as folder:
        driver = build(Path(folder))
        compare(driver, options.seconds, verdicts)
        sick_drivers(driver, verdicts)
    sys.exit(min(verdicts.failed, 1))


if __name__ == "__main__":
    main()
