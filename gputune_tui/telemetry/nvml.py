"""GPUs through NVML, read once in a process of its own: a driver call can hang or crash, the caller must not."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gputune_tui.domain.plain import from_plain
from gputune_tui.errors import ProtocolError

PROBE_TIMEOUT_S = 10.0
KILL_PATIENCE_S = 1.0


@dataclass(frozen=True)
class GpuInfo:
    """One GPU as NVML tells it, None where it does not."""

    index: int
    uuid: str | None
    name: str | None
    memory_total_bytes: int | None
    memory_free_bytes: int | None
    """Free without what the driver reserves (memory v2 where the driver has it)."""


@dataclass(frozen=True)
class GpuProbe:
    """What NVML told, or why it told nothing."""

    driver: str | None
    gpus: tuple[GpuInfo, ...]
    problem: str | None


def probe_gpus(timeout_s: float = PROBE_TIMEOUT_S) -> GpuProbe:
    """Ask NVML in a child process; its hang or crash becomes a `problem`."""
    command = [sys.executable, "-m", "gputune_tui.telemetry.nvml"]
    try:
        # `-m` puts the working directory first on sys.path: the user's own may hold a `json.py` of theirs.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
        )
    except OSError as error:
        return GpuProbe(None, (), f"NVML could not be asked: {error.strerror}")
    try:
        answer, _ = child.communicate(timeout=timeout_s)
        return from_plain(GpuProbe, json.loads(answer))
    except subprocess.TimeoutExpired:
        _abandon(child)
        return GpuProbe(None, (), f"the NVIDIA driver did not answer within {timeout_s:.0f} s")
    except (ValueError, ProtocolError):
        return GpuProbe(None, (), "the NVIDIA driver library crashed")


def _abandon(child: subprocess.Popen[bytes]) -> None:
    """Kill it and wait only briefly: what hangs inside the kernel does not die."""
    child.kill()
    if child.stdout is not None:
        child.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(KILL_PATIENCE_S)


def load_pynvml() -> Any:
    """The module of the package nvidia-ml-py.

    Raises:
        ImportError: it is not installed.
    """
    import pynvml

    return pynvml


def read_nvml() -> GpuProbe:
    """Read NVML in this process."""
    pynvml = load_pynvml()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return GpuProbe(None, (), f"no NVIDIA GPU: {error}")
    try:
        driver = _or_none(pynvml, pynvml.nvmlSystemGetDriverVersion)
        count = _or_none(pynvml, pynvml.nvmlDeviceGetCount) or 0
        return GpuProbe(driver, tuple(_gpu(pynvml, index) for index in range(count)), None)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> GpuInfo:
    handle = _or_none(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return GpuInfo(index, None, None, None, None)
    memory = _or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return GpuInfo(
        index=index,
        uuid=_or_none(nvml, nvml.nvmlDeviceGetUUID, handle),
        name=_or_none(nvml, nvml.nvmlDeviceGetName, handle),
        memory_total_bytes=int(memory.total) if memory is not None and memory.total else None,
        memory_free_bytes=int(memory.free) if memory is not None and memory.total else None,
    )


def _or_none(nvml: Any, call: Any, *arguments: Any) -> Any:
    try:
        value = call(*arguments)
    except nvml.NVMLError:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(read_nvml())))
