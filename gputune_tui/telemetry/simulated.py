"""A scripted node for screenshots and tests: the same for the same seed and time, and always marked as simulated."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator

from gputune_tui.domain.telemetry import DeviceSnapshot, HostSnapshot, NodeSnapshot, ProcessSnapshot, SamplerSettings

GIB = 1 << 30
START_S = 1_767_225_600.0
"""2026-01-01 00:00 UTC, the time at which the script begins."""
FIRST_PID = 5_000_001
"""Above the highest number that Linux gives (2²²): a signal to it can reach nobody."""
MEMORY_BYTES = 80 * GIB
POWER_LIMIT_W = 700.0
CPUS = 16


class SimulatedNode:
    """A backend without a node: training on every GPU but the last, which somebody's server keeps half busy."""

    def __init__(self, seed: int = 0, gpus: int = 2, clock: Callable[[], float] = time.monotonic) -> None:
        self._seed = seed
        self._gpus = gpus
        self._clock = clock
        self._begin_s = clock()

    def read(self, order: SamplerSettings) -> NodeSnapshot:
        """The node now; what costs nothing is not left out."""
        snapshot = self.at(self._clock() - self._begin_s)
        return snapshot if order.gpus else NodeSnapshot(snapshot.time_s, snapshot.host, None, None, (), (), None, True)

    def close(self) -> None:
        """Nothing to let go of."""

    def at(self, t_s: float) -> NodeSnapshot:
        """The node `t_s` seconds after its beginning."""
        problem = None if self._gpus else "No NVIDIA GPU: this node is simulated without one, so trials run on the CPU."
        return NodeSnapshot(
            time_s=START_S + t_s,
            host=self._host(t_s),
            driver="simulated" if self._gpus else None,
            cuda=None,
            devices=tuple(self._device(index, t_s) for index in range(self._gpus)),
            processes=tuple(self._process(index, t_s) for index in range(self._gpus)),
            problem=problem,
            simulated=True,
        )

    def _device(self, index: int, t_s: float) -> DeviceSnapshot:
        util = self._load(index, t_s)
        power_w = min(POWER_LIMIT_W, 90.0 + 640.0 * util)
        capped = power_w > 0.97 * POWER_LIMIT_W
        return DeviceSnapshot(
            index=index,
            uuid=f"GPU-simulated-{index}",
            name="Simulated H100 80GB",
            state="live",
            util_fraction=round(util, 2),
            memory_used_bytes=int(self._memory_bytes(index)) + 700 * (1 << 20),
            memory_total_bytes=MEMORY_BYTES,
            memory_reserved_bytes=551 * (1 << 20),
            power_w=round(power_w, 1),
            power_limit_w=POWER_LIMIT_W,
            temperature_c=float(round(38 + 34 * util + 2 * self._wave("warmth", index, t_s, 90.0))),
            sm_clock_mhz=1755 if capped else 1980,
            throttle=("power cap",) if capped else (),
            pci_bus=f"00000000:{16 + index:02X}:00.0",
            slowdown_temperature_c=87.0,
            memory_util_fraction=round(0.6 * util, 2),
            memory_clock_mhz=2619,
            pstate=0,
            pcie_rx_bytes_per_s=round(9e8 * util),
            pcie_tx_bytes_per_s=round(2e8 * util),
            mig_enabled=False,
            ecc_enabled=True,
            ecc_uncorrected=0,
            ecc_corrected=0,
            persistence=True,
            compute_mode="default",
            pcie_generation=5,
            pcie_width=16,
            pcie_max_generation=5,
            pcie_max_width=16,
            encoder_fraction=0.0,
            decoder_fraction=0.0,
            nvlink_links=18,
            nvlink_rx_bytes_per_s=round(4e9 * util),
            nvlink_tx_bytes_per_s=round(4e9 * util),
            energy_j=round(POWER_LIMIT_W * 0.8 * t_s, 1),
        )

    def _process(self, index: int, t_s: float) -> ProcessSnapshot:
        is_trial = self._trains(index)
        return ProcessSnapshot(
            pid=FIRST_PID + index,
            device_index=index,
            user="you" if is_trial else "somebody",
            gpu_memory_bytes=int(self._memory_bytes(index)),
            cpu_fraction=round(1.0 + 0.4 * self._wave("process", index, t_s, 11.0), 2),
            resident_bytes=int((5.5 if is_trial else 2.5) * GIB),
            command="python train.py" if is_trial else "python -m serve --model small",
            is_trial=is_trial,
            started=1000 + index,
            parent_pid=1,
            running_s=float(60 * (index + 1) + int(t_s)),
            kind="C",
            sm_fraction=round(self._load(index, t_s), 2),
        )

    def _host(self, t_s: float) -> HostSnapshot:
        per_cpu = tuple(
            round(min(1.0, max(0.0, 0.45 + 0.4 * self._wave("cpu", cpu, t_s, 7.0 + cpu))), 3) for cpu in range(CPUS)
        )
        mean = sum(per_cpu) / CPUS
        return HostSnapshot(
            hostname="simulated",
            cpu_fraction=round(mean, 3),
            per_cpu_fractions=per_cpu,
            effective_cpus=float(CPUS),
            cpus=CPUS,
            load_1=round(CPUS * mean, 2),
            memory_used_bytes=int((48 + 6 * self._wave("memory", 0, t_s, 120.0)) * GIB),
            memory_total_bytes=256 * GIB,
            memory_limit_bytes=128 * GIB,
            shm_used_bytes=int((6 + 2 * self._wave("shm", 0, t_s, 30.0)) * GIB),
            shm_total_bytes=64 * GIB,
            iowait_fraction=round(0.02 + 0.02 * self._wave("disk", 0, t_s, 13.0), 3),
            disk_read_bytes_per_s=round(4e8 + 2e8 * self._wave("disk", 0, t_s, 13.0)),
            disk_write_bytes_per_s=round(2e6 + 1e6 * self._wave("disk", 1, t_s, 17.0)),
            net_rx_bytes_per_s=round(1.2e6 + 3e5 * self._wave("net", 0, t_s, 9.0)),
            net_tx_bytes_per_s=round(3e5 + 1e5 * self._wave("net", 1, t_s, 9.0)),
        )

    def _trains(self, index: int) -> bool:
        return index < self._gpus - 1 or self._gpus == 1

    def _load(self, index: int, t_s: float) -> float:
        wave = self._wave("load", index, t_s, 17.0) + 0.5 * self._wave("ripple", index, t_s, 3.7)
        return min(1.0, max(0.0, (0.88 if self._trains(index) else 0.4) + 0.1 * wave))

    def _memory_bytes(self, index: int) -> float:
        return (61.5 if self._trains(index) else 22.0) * GIB

    def _wave(self, what: str, index: int, t_s: float, period_s: float) -> float:
        """Between -1 and 1; its phase belongs to the seed, the quantity and the index."""
        phase = random.Random(f"{self._seed}/{what}/{index}").random()
        return math.sin(2 * math.pi * (t_s / period_s + phase))


def simulated_snapshots(seed: int = 0, gpus: int = 2, interval_s: float = 1.0) -> Iterator[NodeSnapshot]:
    """The script from its beginning, one snapshot per interval, without end and without waiting."""
    node = SimulatedNode(seed, gpus)
    tick = 0
    while True:
        yield node.at(tick * interval_s)
        tick += 1
