"""The host as a trial meets it: effective CPUs, memory and its cgroup limit, shared memory."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

UNLIMITED_BYTES = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2⁶³."""


@dataclass(frozen=True)
class HostLimits:
    """What this process may use; None where unknown or unlimited."""

    effective_cpus: float
    """min(affinity, cgroup quota, SLURM CPUs)."""
    memory_limit_bytes: int | None
    """The tightest cgroup memory limit above this process."""
    memory_total_bytes: int
    memory_available_bytes: int
    """MemAvailable, and no more than the cgroup limit leaves."""
    shm_bytes: int | None


def host_limits(proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> HostLimits:
    """Read them now."""
    memory = psutil.virtual_memory()
    limit, used = memory_limit(proc, cgroup_root)
    available = memory.available if limit is None else min(memory.available, max(0, limit - (used or 0)))
    return HostLimits(
        effective_cpus=effective_cpus(proc, cgroup_root),
        memory_limit_bytes=limit,
        memory_total_bytes=memory.total if limit is None else min(memory.total, limit),
        memory_available_bytes=available,
        shm_bytes=_shm_bytes(),
    )


def effective_cpus(proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> float:
    """min(affinity, cgroup v1 or v2 quota, SLURM CPUs); psutil and os.cpu_count see neither quota nor SLURM."""
    counts = [float(len(os.sched_getaffinity(0)))]
    quota = cpu_quota(proc, cgroup_root)
    if quota is not None:
        counts.append(quota[0])
    slurm = os.environ.get("SLURM_CPUS_PER_TASK") or os.environ.get("SLURM_CPUS_ON_NODE", "")
    if slurm.isdigit() and int(slurm) > 0:
        counts.append(float(slurm))
    return min(counts)


def cgroup_folders(proc: Path, root: Path, controller: str) -> list[Path]:
    """The folders of this process's cgroup and its parents for a controller, in v2 or v1 layout.

    Inside a container the path in /proc/self/cgroup may belong to the host; folders that are not there are left out,
    and the root of the mount, which then is the container's own group, always counts.
    """
    folders: list[Path] = []
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            if line.count(":") < 2:
                continue
            number, controllers, path = line.split(":", 2)
            if number == "0" and not controllers:
                bases = [root, root / "unified"]
            elif controller in controllers.split(","):
                bases = [root / controllers, root / controller]
            else:
                continue
            for base in bases:
                part = Path(path.lstrip("/"))
                folders += [base / parent for parent in (part, *part.parents)]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def cpu_quota(proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> tuple[float, Path] | None:
    """The tightest cgroup quota above this process in CPUs, and the folder of the group that has it."""
    found = [(quota, f) for f in cgroup_folders(proc, cgroup_root, "cpu") if (quota := _quota(f)) is not None]
    return min(found, key=lambda pair: pair[0]) if found else None


def _quota(folder: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        return None if quota_us <= 0 else quota_us / int((folder / "cpu.cfs_period_us").read_text())
    return None


def memory_limit(
    proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")
) -> tuple[int | None, int | None]:
    """The tightest cgroup memory limit above this process, and what is used under it less reclaimable page cache."""
    found: list[tuple[int, int | None]] = []
    for folder in cgroup_folders(proc, cgroup_root, "memory"):
        for limit_name, usage_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _number(folder / limit_name)
            if limit is not None and limit < UNLIMITED_BYTES:
                found.append((limit, _used(folder, usage_name)))
    return min(found, key=lambda pair: pair[0]) if found else (None, None)


def _used(folder: Path, usage_name: str) -> int | None:
    """Usage less the page cache that the kernel gives back on demand."""
    usage = _number(folder / usage_name)
    if usage is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in ("inactive_file", "total_inactive_file"):
                return max(0, usage - int(value))
    return usage


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def _shm_bytes() -> int | None:
    with contextlib.suppress(OSError):
        info = os.statvfs("/dev/shm")
        return info.f_frsize * info.f_blocks
    return None
