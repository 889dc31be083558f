"""Functions that are replaced come back as they were."""

from __future__ import annotations

from typing import Any

from gputune_tui.trainer.script.patches import Patches


class Base:
    def call(self) -> str:
        """What it does."""
        return "base"


class Derived(Base):
    pass


def louder(original: Any) -> Any:
    def call(self: Base) -> str:
        return str(original(self)).upper()

    return call


def test_wrapped_functions_keep_their_names_and_come_back() -> None:
    before = Base.__dict__["call"]
    patches = Patches()
    patches.wrap(Base, "call", louder)
    assert (Base().call(), Derived().call(), Base.call.__doc__) == ("BASE", "BASE", "What it does.")
    patches.undo()
    assert Base.__dict__["call"] is before


def test_what_a_class_inherits_is_inherited_again() -> None:
    patches = Patches()
    patches.wrap(Derived, "call", louder)
    assert (Base().call(), Derived().call()) == ("base", "BASE")
    patches.undo()
    assert "call" not in vars(Derived)


def test_wrappers_come_off_in_reverse() -> None:
    before = Base.__dict__["call"]
    patches = Patches()
    patches.wrap(Base, "call", louder)
    patches.wrap(Base, "call", louder)
    patches.undo()
    patches.undo()
    assert Base.__dict__["call"] is before
