"""Functions of torch and Python that are replaced while a script runs, and put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]
_NOT_THERE = object()


class Patches:
    """Replaces functions of classes and modules; `undo` puts all of them back, the last one first."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any]] = []

    def __bool__(self) -> bool:
        """Whether anything is replaced."""
        return bool(self._replaced)

    def wrap(self, owner: Any, name: str, make: Callable[[Function], Function]) -> None:
        """Put what `make` returns for the function in its place; it keeps its name, documentation and signature."""
        original = getattr(owner, name)
        wrapped = functools.wraps(original)(make(original))
        self.put(owner, name, wrapped)

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Put `value` in the place of an attribute."""
        self._replaced.append((owner, name, vars(owner).get(name, _NOT_THERE)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Everything as it was."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is _NOT_THERE:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
