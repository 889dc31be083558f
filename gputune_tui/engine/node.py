"""Which device a study runs on, and the memory budget its trials are held to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from gputune_tui.domain.study import MemoryBudget
from gputune_tui.errors import EnvironmentProblem, UsageError
from gputune_tui.telemetry.host import HostLimits
from gputune_tui.telemetry.nvml import GpuInfo, GpuProbe
from gputune_tui.units import bytes_text, parse_size

DEFAULT_SHARE = 0.9
"""Of what is free (DESIGN section 8)."""
HOST_RESERVE_SHARE = 0.1
HOST_RESERVE_BYTES = (512 << 20, 8 << 30)
"""Least and most that are kept from the host's memory for the system and this program (some 0.3 GiB), but never more
than half of it."""


@dataclass(frozen=True)
class ChosenDevice:
    """The device of a study."""

    spec: str
    """As the trial names it: "cpu" or "cuda:0", the one GPU that it sees."""
    label: str
    """As the user names it."""
    gpu: GpuInfo | None
    driver: str | None
    note: str | None = None


def choose_device(wanted: str | None, probe: Callable[[], GpuProbe], visible: str | None = None) -> ChosenDevice:
    """Resolve `--device`.

    Args:
        wanted: "cpu", "cuda", "cuda:N", a UUID or its beginning; None takes a GPU where there is one.
        probe: asks NVML; called only when the answer matters.
        visible: CUDA_VISIBLE_DEVICES of the user, which N counts within.

    Raises:
        UsageError: not a device's name, or no GPU of that number or UUID, or several of that UUID's beginning.
        EnvironmentProblem: a GPU was asked for and there is none, or it does not answer.
    """
    if wanted == "cpu":
        return ChosenDevice("cpu", "cpu", None, None)
    if wanted is not None and not re.fullmatch(r"cuda(:\d+)?|GPU-[0-9a-fA-F-]+", wanted):
        raise UsageError(f"{wanted!r} is not a device; write cpu, cuda, cuda:1 or a GPU's UUID (GPU-...)")
    found = probe()
    gpus = visible_gpus(found.gpus, visible)
    if not gpus:
        reason = found.problem or "no NVIDIA GPU is visible"
        if wanted is None:
            return ChosenDevice("cpu", "cpu", None, None, f"{reason}; trials run on the CPU")
        raise EnvironmentProblem(f"--device {wanted} is not possible: {reason}; use --device cpu")
    matches = _matching(gpus, wanted)
    if len(matches) != 1:
        what = f"{wanted} is the beginning of several UUIDs" if matches else f"there is no device {wanted}"
        names = ", ".join(f"cuda:{i} {gpu.uuid or ''}".strip() for i, gpu in enumerate(gpus))
        raise UsageError(f"{what}; this node has {names}")
    gpu = matches[0]
    label = wanted or f"cuda:{gpus.index(gpu)}"
    if gpu.uuid is None:
        # A trial is shown its GPU by UUID: without one it would run on another card.
        raise EnvironmentProblem(f"{label} does not tell its UUID (lost from the bus?); choose another --device")
    return ChosenDevice("cuda:0", label, gpu, found.driver)


def _matching(gpus: list[GpuInfo], wanted: str | None) -> list[GpuInfo]:
    """The GPUs that `wanted` can mean; without a wish the first that answers."""
    if wanted is None:
        return next(([gpu] for gpu in gpus if gpu.uuid), gpus[:1])
    if wanted.startswith("GPU-"):
        return [gpu for gpu in gpus if gpu.uuid and gpu.uuid.startswith(wanted)]
    number = int(wanted.partition(":")[2] or 0)
    return gpus[number : number + 1]


def visible_gpus(gpus: tuple[GpuInfo, ...], visible: str | None) -> list[GpuInfo]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; entries are numbers or beginnings of UUIDs.

    As CUDA does, the list ends at the first entry that names no GPU, or more than one.
    """
    if visible is None:
        return list(gpus)
    chosen: list[GpuInfo] = []
    for entry in filter(None, (part.strip() for part in visible.split(","))):
        match = [g for g in gpus if (str(g.index) == entry if entry.isdigit() else (g.uuid or "").startswith(entry))]
        if len(match) != 1:
            break
        chosen += match
    return chosen


def resolve_budget(text: str | None, host_text: str | None, device: ChosenDevice, host: HostLimits) -> MemoryBudget:
    """The memory budget of `--budget` and `--host-budget`, or the default.

    Raises:
        UsageError: not a size, more than the device has, or the device does not tell its memory and none was given.
    """
    total, free, free_words = device_memory(device, host)
    if text is None:
        if free is None:
            raise UsageError(f"{device.label} does not tell its free memory; give a budget, for example --budget 16GiB")
        amount, source = int(free * DEFAULT_SHARE), f"90 % of {free_words} ({bytes_text(free)})"
    else:
        amount, source = read_budget(text, total, "--budget"), f"--budget {text.strip()}"
    if host_text is not None:
        host_bytes = read_budget(host_text, host.memory_total_bytes, "--host-budget")
        return MemoryBudget(amount, host_bytes, source, f"--host-budget {host_text.strip()}")
    host_bytes, host_source = default_host_budget(host)
    return MemoryBudget(amount, host_bytes, source, host_source, host_is_default=True)


def default_host_budget(host: HostLimits) -> tuple[int, str]:
    """The host's budget where none is given, and where it comes from: all that there is less a reserve.

    Of the total and not of what is free just now, so that the same trial is judged alike in every run.
    """
    total = host.memory_total_bytes
    reserve = host_reserve_bytes(total)
    what = "the host's memory" if host.memory_limit_bytes is None else "the cgroup's memory limit"
    return total - reserve, f"{what} ({bytes_text(total)}) less a reserve of {bytes_text(reserve)}"


def host_reserve_bytes(total_bytes: int) -> int:
    """What the default budget leaves of the host's memory."""
    least, most = HOST_RESERVE_BYTES
    return min(max(least, min(most, int(total_bytes * HOST_RESERVE_SHARE))), total_bytes // 2)


def device_memory(device: ChosenDevice, host: HostLimits) -> tuple[int | None, int | None, str]:
    """(total, free, what "free" means here) of the device in bytes."""
    if device.spec == "cpu":
        words = "what the cgroup leaves" if host.memory_limit_bytes is not None else "the available memory"
        return host.memory_total_bytes, host.memory_available_bytes, words
    gpu = device.gpu
    total = gpu.memory_total_bytes if gpu else None
    return total, gpu.memory_free_bytes if gpu else None, "what is free on the device"


def read_budget(text: str, total_bytes: int | None, option: str) -> int:
    """Bytes of a size or of a percentage of the total.

    Raises:
        UsageError: neither, or a percentage of an unknown total.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    if match is None:
        try:
            return parse_size(text)
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from None
    if not 0 < float(match[1]) <= 100:
        raise UsageError(f"{option}: {text.strip()} is not between 0 and 100 %")
    if total_bytes is None:
        raise UsageError(f"{option}: the device does not tell its total memory; give a size such as 16GiB")
    return int(total_bytes * float(match[1]) / 100)


def users_visible_devices() -> str | None:
    """CUDA_VISIBLE_DEVICES of this process."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")
