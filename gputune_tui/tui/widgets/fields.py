"""A line to type in that shows text of any origin as it is, or replaced where a terminal would obey it."""

from __future__ import annotations

from rich.highlighter import Highlighter
from rich.text import Text
from textual.widgets import Input

from gputune_tui.text import printable


class _Printable(Highlighter):
    """What textual calls to colour a value: here it replaces what cannot be shown, one character by one."""

    def __call__(self, text: str | Text) -> Text:
        return Text(printable(str(text)), no_wrap=True, overflow="ignore", end="")

    def highlight(self, text: Text) -> None:
        """Nothing has a colour of its own."""


class TypedLine(Input):
    """An `Input`; its value stays what it was given."""

    def __init__(self, value: str = "", placeholder: str = "", *, id: str | None = None) -> None:  # noqa: A002  # textual's name
        super().__init__(value, placeholder, highlighter=_Printable(), id=id)
