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

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run_module = spec.loader.exec_module

        def exec_and_arm(module: ModuleType) -> None:
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
    from gputune_tui.trainer.script import arm

    arm()


if "GPUTUNE_JOB" in os.environ and "GPUTUNE_EVENTS_FD" in os.environ:
    sys.meta_path.insert(0, _ArmAfterImport())
_chain()
