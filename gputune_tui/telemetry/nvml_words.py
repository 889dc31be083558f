"""NVML's numbers in words: return codes (nvmlReturn_t) and the reasons that hold clocks down, as nvml.h gives them."""

from __future__ import annotations

NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
DEPRECATED = 26
FOR_GOOD = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED})
"""Answers that will not change while the driver stays loaded."""

_POWER_CAP = 0x4
_HW_SLOWDOWN = 0x8
_SYNC_BOOST = 0x10
_THERMAL = 0x20 | 0x40
_POWER_BRAKE = 0x80

_WHY_NO_GPU = {
    LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 was not found",
        "to use a GPU install the driver, or give the container its GPUs (docker run --gpus all)",
    ),
    DRIVER_NOT_LOADED: (
        "the kernel module is not loaded",
        "run `sudo modprobe nvidia`, and see `dmesg` if that fails",
    ),
    LIB_RM_VERSION_MISMATCH: (
        "the driver library and the loaded kernel module are of different versions (an upgrade without a reboot)",
        "reboot, or in a container restart it",
    ),
    NO_PERMISSION: (
        "this user may not open the device files",
        "see the owner of /dev/nvidia* and ask for membership in its group",
    ),
}


def why_no_gpu(code: int, is_wsl: bool = False) -> tuple[str, str]:
    """Cause and remedy of a failed start of NVML. Never asks the library: after a failed start that may crash."""
    if is_wsl and code in (LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED):
        return (
            "this is WSL, and the driver that Windows lends to it was not found",
            "install NVIDIA's driver in Windows (none in Linux), and see that /usr/lib/wsl/lib is on LD_LIBRARY_PATH",
        )
    return _WHY_NO_GPU.get(code, (f"the driver failed with NVML error {code}", "see `nvidia-smi` and `dmesg`"))


def throttle_words(reasons: int) -> tuple[str, ...]:
    """What slows the clocks, of the bits of nvmlClocksEventReasons; idling and clocks set by the user do not count."""
    words = []
    if reasons & _POWER_CAP:
        words.append("power cap")
    if reasons & _THERMAL:
        words.append("thermal")
    if reasons & _POWER_BRAKE:
        words.append("power brake")
    if reasons & _HW_SLOWDOWN and not reasons & (_THERMAL | _POWER_BRAKE):
        words.append("hardware slowdown")
    if reasons & _SYNC_BOOST:
        words.append("sync boost")
    return tuple(words)


_COMPUTE_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


def compute_mode_word(mode: int) -> str | None:
    """nvmlComputeMode_t in a word; None for one that is not known."""
    return _COMPUTE_MODES[mode] if 0 <= mode < len(_COMPUTE_MODES) else None
