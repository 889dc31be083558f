"""The sampling process: one snapshot a line on stdout, orders on stdin; ends with its parent. No torch, no screen."""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gputune_tui.domain.plain import from_plain
from gputune_tui.domain.telemetry import NodeSnapshot, SamplerSettings
from gputune_tui.errors import ProtocolError
from gputune_tui.telemetry.backend import Backend
from gputune_tui.telemetry.wire import encode

FIRST_PAUSE_S = 0.25
"""Between the first two snapshots: rates need two readings, and nobody wants to wait for them."""
MIN_INTERVAL_S = 0.25
"""The driver's own samples are about 0.2 s apart; faster polling repeats them."""
READ_BYTES = 1 << 12


class Orders:
    """The settings as the last whole line on stdin gives them."""

    def __init__(self, fd: int, settings: SamplerSettings) -> None:
        self.settings = settings
        self.ended = False
        self._fd = fd
        self._rest = b""

    def wait(self, until_s: float) -> bool:
        """Wait for a new line, or until the monotonic time given; whether one came."""
        while not self.ended:
            left_s = until_s - time.monotonic()
            if not select.select([self._fd], [], [], max(0.0, left_s))[0]:
                return False
            data = os.read(self._fd, READ_BYTES)
            self.ended = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            if any([self._obey(line) for line in lines]):
                return True
        return False

    def _obey(self, line: bytes) -> bool:
        try:
            self.settings = from_plain(SamplerSettings, json.loads(line))
        except (ValueError, ProtocolError):
            return False
        return True


def write_snapshot(fd: int, snapshot: NodeSnapshot) -> None:
    """Write it as one line.

    Raises:
        OSError: nobody reads any more.
    """
    line = memoryview(encode(snapshot))
    while line:
        line = line[os.write(fd, line) :]


def sample(backend: Backend, orders: Orders, out_fd: int) -> None:
    """Write snapshots until stdin ends, the parent changes or nobody reads."""
    parent = os.getppid()
    pause_s: float = FIRST_PAUSE_S
    while not orders.ended and os.getppid() == parent:
        begin_s = time.monotonic()
        settings = orders.settings
        write_snapshot(out_fd, backend.read(settings))
        while True:
            interval_s = max(MIN_INTERVAL_S, orders.settings.interval_s)
            if not orders.wait(begin_s + min(pause_s, interval_s)):
                break
        pause_s = interval_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until stdin ends; leaves at once, even while a thread hangs in the driver."""
    parser = argparse.ArgumentParser(prog="python -m gputune_tui.telemetry.sampler", description=__doc__)
    parser.add_argument("--simulate", type=int, metavar="GPUS", help="a scripted node with this many GPUs")
    parser.add_argument("--seed", type=int, default=0, help="of the scripted node")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play back a recording")
    options = parser.parse_args(arguments)
    orders = Orders(sys.stdin.fileno(), SamplerSettings())
    status = 0
    try:
        orders.wait(time.monotonic())
        sample(_backend(options.simulate, options.seed, options.replay), orders, sys.stdout.fileno())
    except OSError:
        pass  # nobody reads any more
    except KeyboardInterrupt:
        status = 130
    os._exit(status)


def _backend(simulated_gpus: int | None, seed: int, recording: Path | None) -> Backend:
    if recording is not None:
        from gputune_tui.telemetry.replay import ReplayedNode

        return ReplayedNode(recording)
    if simulated_gpus is not None:
        from gputune_tui.telemetry.simulated import SimulatedNode

        return SimulatedNode(seed, simulated_gpus)
    from gputune_tui.telemetry.live import LiveNode

    return LiveNode()


if __name__ == "__main__":
    main()
