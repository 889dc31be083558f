"""Start-up hook of a command's Python processes: arms the trial's optimizer hooks once torch is imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_TARGET = "torch"


def _chain() -> None:
    """Run the sitecustomize that this one hides, if there is one."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class _ArmAfterImport(importlib.abc.MetaPathFinder):
    """Lets the import of torch happen as usual and arms the hooks right after it."""

    def __init__(self) -> None:
        self._is_looking = False

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _TARGET or self._is_looking:
            return None
        # It stays until torch is imported: libraries look for torch without importing it.
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_looking = False
        if spec is None or spec.loader is None:
            return spec
        run_module = spec.loader.exec_module

        def exec_and_arm(module: ModuleType) -> None:
            sys.meta_path.remove(self)
            run_module(module)
            _arm()

        spec.loader.exec_module = exec_and_arm  # type: ignore[method-assign]  # of this one loader object
        return spec


def _arm() -> None:
    path = os.path.join(os.path.dirname(_HERE), "bootstrap.py")
    spec = importlib.util.spec_from_file_location("_gputune_bootstrap", path)
    assert spec is not None
    assert spec.loader is not None
    bootstrap = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bootstrap)
    bootstrap.install()
    from gputune_tui.trainer.script.arming import arm

    arm()


def _is_over() -> bool:
    """The trial has what it wants, and the process that said so is gone: a shell script goes on with its next line.

    What multiprocessing starts belongs to a process that is still at its end.
    """
    try:
        with open(os.path.join(os.path.dirname(os.environ["GPUTUNE_JOB"]), "ranks", "over"), encoding="ascii") as over:
            speaker = over.read()
        return not os.path.exists(f"/proc/{speaker}") and not any("multiprocessing" in word for word in sys.orig_argv)
    except OSError:
        return False


if "GPUTUNE_JOB" in os.environ and _is_over():
    os._exit(0)
if "GPUTUNE_JOB" in os.environ or "GPUTUNE_RUN" in os.environ:
    sys.meta_path.insert(0, _ArmAfterImport())
_chain()
