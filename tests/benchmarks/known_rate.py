"""A workload that sleeps 50 ms per micro-batch of 8 must be measured at 160 samples/s within 5 %.

Run: python -m tests.benchmarks.known_rate
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.cli.run_cli import document, gputune
from tests.cli.test_end_to_end import SLEEPER

EXPECTED_SAMPLES_PER_S = 160.0
TOLERANCE_FRACTION = 0.05


def main() -> int:
    """Print one line per accumulation; the exit code is the number of misses."""
    misses = 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sleeper.py").write_text(SLEEPER)
        for accumulation in (1, 2, 4):
            done = gputune(
                *("trial", "./sleeper.py", "--device", "cpu", "--global-batch", str(8 * accumulation)),
                *("--set", "micro_batch_size=8", "--study", f"study{accumulation}", "--json", "-"),
                cwd=Path(folder),
            )
            speed = document(done)["trials"][0]["samples_per_s"]
            off = speed["value"] / EXPECTED_SAMPLES_PER_S - 1
            passed = abs(off) <= TOLERANCE_FRACTION
            misses += not passed
            print(
                f"accumulation {accumulation}: {speed['value']:.1f} samples/s "
                f"({speed['low']:.1f} to {speed['high']:.1f}), {off:+.1%} of {EXPECTED_SAMPLES_PER_S:.0f}: "
                f"{'PASS' if passed else 'FAIL'}"
            )
    return misses


if __name__ == "__main__":
    sys.exit(main())
