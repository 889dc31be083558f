"""Surroundings that only root can make: small file systems, control groups; each skips where it cannot be had."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")
GONE_S = 10.0


@contextmanager
def mounted_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of `size` (as tmpfs takes it: 64m) on a folder."""
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def with_small_shm(size: str, command: list[str]) -> list[str]:
    """The command in a mount namespace of its own, where /dev/shm has `size`."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("a mount namespace cannot be made here")
    script = f'mount --make-rprivate / && mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, "sh", *command]


@contextmanager
def control_group(controller: str, limits: dict[str, str]) -> Iterator[Path]:
    """A control group under the root group, of version 1 or 2, with limits as version 2 has them."""
    is_version_1 = (CGROUPS / controller).is_dir()
    group = (CGROUPS / controller if is_version_1 else CGROUPS) / f"gputune-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
        for name, value in limits.items():
            for file, text in (_in_version_1(name, value) if is_version_1 else {name: value}).items():
                (group / file).write_text(text)
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"a control group with {controller} cannot be made here: {error}")
    try:
        yield group
    finally:
        _remove(group)


def _in_version_1(name: str, value: str) -> dict[str, str]:
    if name == "cpu.max":
        quota, period = value.split()
        return {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": quota}
    return {{"memory.max": "memory.limit_in_bytes"}.get(name, name): value}


def _remove(group: Path) -> None:
    """Processes leave their group a little after they have ended."""
    deadline = time.monotonic() + GONE_S
    while True:
        try:
            group.rmdir()
        except OSError:
            assert time.monotonic() < deadline, f"{group} still holds {(group / 'cgroup.procs').read_text()}"
            time.sleep(0.05)
        else:
            return


def inside(group: Path, command: list[str]) -> list[str]:
    """The command in that group from its start."""
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
