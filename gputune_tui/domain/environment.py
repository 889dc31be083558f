"""What a result belongs to: machine, device, driver, interpreter, torch and the host's limits."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Environment:
    """Where a study's numbers hold; None where unknown."""

    host: str | None
    device: str
    """The device as torch names it: "cpu", "cuda:0"."""
    device_name: str | None
    """Model of the GPU or CPU."""
    device_uuid: str | None
    """UUID of the GPU; None on a CPU."""
    driver: str | None
    cuda: str | None
    """CUDA version that torch was built for."""
    torch: str | None
    python: str | None
    effective_cpus: float | None
    """min(affinity, cgroup quota, SLURM CPUs)."""
    host_memory_bytes: int | None
    """cgroup limit or total memory."""
    shm_bytes: int | None
    """Size of /dev/shm."""

    @property
    def device_kind(self) -> str:
        """ "cpu" or "cuda"."""
        return self.device.partition(":")[0]


def intra_op_threads(cpus: float) -> int:
    """Threads for a CPU trial: whole effective CPUs, at least one."""
    return max(1, math.floor(cpus))
