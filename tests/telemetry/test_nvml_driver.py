"""Opening NVML under WSL, where Windows lends the driver's library from a place of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gputune_tui.telemetry.nvml_driver import WSL_NOTE, NvmlDriver
from gputune_tui.telemetry.nvml_words import DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, NO_PERMISSION


class NVMLError(Exception):
    """As pynvml's: it knows its number."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def driver(folder: Path, *init_errors: int, is_wsl: bool = True) -> NvmlDriver:
    """Over a library whose start fails with these errors, one at each call, and then succeeds."""
    waiting = list(init_errors)

    def init() -> None:
        if waiting:
            raise NVMLError(waiting.pop(0))

    module: Any = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=init,
        nvmlSystemGetDriverVersion=lambda: "560.94",
        nvmlSystemGetCudaDriverVersion_v2=lambda: 12060,
        nvmlDeviceGetCount=lambda: 1,
    )
    if is_wsl:
        (folder / "dxg").touch()
    return NvmlDriver(lambda: module, folder / "dxg", folder / "libnvidia-ml.so.1")


def test_windows_library_outside_the_loaders_path_is_found(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()
    found = driver(tmp_path, LIBRARY_NOT_FOUND).open()
    assert (found.gpu_count, found.cuda, found.problem, found.process_note) == (1, "12.6", None, WSL_NOTE)


@pytest.mark.parametrize("code", [LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED])
def test_without_the_driver_of_windows_the_remedy_is_there(tmp_path: Path, code: int) -> None:
    problem = driver(tmp_path, code, code).open().problem
    assert problem is not None
    assert "in Windows" in problem
    assert "modprobe" not in problem, "a module in Linux is what must not be installed there"
    assert problem.count(". ") == 0


def test_outside_wsl_nothing_of_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()
    problem = driver(tmp_path, LIBRARY_NOT_FOUND, is_wsl=False).open().problem
    assert problem is not None
    assert "WSL" not in problem
    assert driver(tmp_path, is_wsl=False).open().process_note is None


def test_other_failures_under_wsl_keep_their_own_words(tmp_path: Path) -> None:
    assert "/dev/nvidia" in (driver(tmp_path, NO_PERMISSION).open().problem or "")
