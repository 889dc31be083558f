"""NVML as this process has it open: what the node has, or one sentence why it has nothing."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputune_tui.telemetry.nvml_calls import as_text
from gputune_tui.telemetry.nvml_reader import NvmlDevice
from gputune_tui.telemetry.nvml_words import LIBRARY_NOT_FOUND, why_no_gpu

WSL_DEVICE = Path("/dev/dxg")
WSL_LIBRARY = Path("/usr/lib/wsl/lib/libnvidia-ml.so.1")
"""Where Windows puts the driver's library, often outside the loader's path."""
WSL_NOTE = "Under WSL the driver names no processes: those of Windows and of Linux share the GPU unseen."


@dataclass(frozen=True)
class DriverFacts:
    """What holds until the driver is opened anew."""

    driver: str | None
    cuda: str | None
    gpu_count: int
    problem: str | None
    """Why there is no GPU, one sentence."""
    process_note: str | None = None
    """Why the processes cannot be listed."""


class NvmlDriver:
    """The calls block for as long as the driver likes."""

    def __init__(self, load: Callable[[], Any], wsl_device: Path = WSL_DEVICE, wsl_library: Path = WSL_LIBRARY) -> None:
        """`load` gives the module pynvml."""
        self._load = load
        self._wsl_device = wsl_device
        self._wsl_library = wsl_library
        self._nvml: Any = None

    def open(self) -> DriverFacts:
        """Initialise NVML; whatever stands in the way becomes `problem`."""
        is_wsl = self._wsl_device.exists()
        try:
            self._nvml = self._load()
            self._initialise(is_wsl)
        except ImportError:
            return _none("the Python module pynvml is missing", "install nvidia-ml-py")
        except AttributeError:
            return _none("another package named pynvml hides NVIDIA's", "reinstall nvidia-ml-py and remove the other")
        except self._nvml.NVMLError as error:
            return _none(*why_no_gpu(error.value, is_wsl))
        driver = self.ask("nvmlSystemGetDriverVersion")
        version = self.ask("nvmlSystemGetCudaDriverVersion_v2") or self.ask("nvmlSystemGetCudaDriverVersion")
        cuda = f"{version // 1000}.{version % 1000 // 10}" if version else None
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            return _none(*why_no_gpu(error.value, is_wsl))
        if count == 0:
            none = _none(
                "the driver shows no device",
                "see what `nvidia-smi -L` says and whether the job or container was given a GPU",
            )
            return DriverFacts(driver, cuda, 0, none.problem)
        return DriverFacts(driver, cuda, count, None, WSL_NOTE if is_wsl else None)

    def device(self, index: int) -> NvmlDevice:
        """The GPU of that number; asks nothing yet."""
        return NvmlDevice(self._nvml, index)

    def ask(self, name: str) -> Any:
        """A question about the system; None where it is not answered."""
        try:
            return as_text(getattr(self._nvml, name)())
        except (self._nvml.NVMLError, AttributeError, UnicodeDecodeError):
            return None

    def _initialise(self, is_wsl: bool) -> None:
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            if error.value != LIBRARY_NOT_FOUND or not is_wsl or not self._wsl_library.exists():
                raise
            # A library that is already loaded is found by its name.
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(self._wsl_library))
            self._nvml.nvmlInit()


def _none(cause: str, remedy: str) -> DriverFacts:
    return DriverFacts(None, None, 0, f"No NVIDIA GPU: {cause}, so trials run on the CPU; {remedy}.")
