"""The optimizers that a script builds."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import Optimizer

from gputune_tui.trainer.script.patches import Function, Patches


class OptimizerWatch:
    """Knows every optimizer that is alive."""

    def __init__(self) -> None:
        self._built: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._is_installed = False
        self.on_built: list[Callable[[Optimizer], None]] = []
        """Called when its groups exist; what a subclass adds comes later."""

    def install(self, patches: Patches) -> None:
        """Begin to watch; once is enough."""
        if self._is_installed:
            return
        self._is_installed = True
        patches.wrap(Optimizer, "__init__", self._constructor)

    def alive(self) -> list[Optimizer]:
        """In no order."""
        return list(self._built)

    def _constructor(self, original: Function) -> Function:
        def construct(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._built.add(optimizer)
            for callback in self.on_built:
                callback(optimizer)

        return construct
