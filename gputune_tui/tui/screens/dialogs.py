"""Small dialogs: lines to read, a question, and one line to type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input

from gputune_tui.tui.widgets.fields import TypedLine
from gputune_tui.tui.widgets.lines import Line, LineView, hanging, wrapped


class ReadDialog(ModalScreen[None]):
    """Lines to read; the arrows scroll, Escape closes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark,m", "close", "close"),
        Binding("j,down", "scroll(1)", "down", show=False),
        Binding("k,up", "scroll(-1)", "up", show=False),
        Binding("pagedown,space", "scroll(10)", "page down", show=False),
        Binding("pageup", "scroll(-10)", "page up", show=False),
    ]
    DEFAULT_CSS = """
    ReadDialog { align: center middle; }
    ReadDialog VerticalScroll {
        width: 90%; max-width: 110; height: auto; max-height: 90%;
        border: round $primary; background: $surface; padding: 0 1;
        scrollbar-gutter: stable; scrollbar-size-vertical: 1;
    }
    """

    def __init__(self, title: str, lines: Sequence[Line], at_end: bool = False) -> None:
        super().__init__()
        self._heading = title
        self._lines = lines
        self._at_end = at_end

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield LineView()

    def on_mount(self) -> None:
        """Show the lines."""
        box = self.query_one(VerticalScroll)
        box.border_title, box.border_subtitle = self._heading, "Esc closes"
        self.call_after_refresh(self._show_lines)

    def _show_lines(self) -> None:
        box, view = self.query_one(VerticalScroll), self.query_one(LineView)
        lines: list[Line] = []
        for line in self._lines:
            lines += hanging(line, view.size.width)
        view.show(lines)
        if self._at_end:
            self.call_after_refresh(box.scroll_end, animate=False)

    def on_resize(self) -> None:
        """Lines break elsewhere."""
        self.call_after_refresh(self._show_lines)

    def action_scroll(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def action_close(self) -> None:
        """Back to where we were."""
        self.dismiss(None)


class ConfirmDialog(ModalScreen[bool]):
    """A question; only `y` says yes, so that no Enter meant for something else does."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("escape,n,q,enter", "answer(False)", "no"),
    ]
    DEFAULT_CSS = """
    ConfirmDialog { align: center middle; }
    ConfirmDialog > Vertical {
        width: 80%; max-width: 90; height: auto; max-height: 90%; border: round $primary; background: $surface;
        padding: 0 1;
    }
    """

    def __init__(self, title: str, lines: Sequence[Line], question: str) -> None:
        super().__init__()
        self._heading = title
        self._lines = lines
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical():
            yield LineView()

    def on_mount(self) -> None:
        """Show the lines."""
        box = self.query_one(Vertical)
        box.border_title, box.border_subtitle = self._heading, "y yes, Esc no"
        self.call_after_refresh(self._show_lines)

    def _show_lines(self) -> None:
        view = self.query_one(LineView)
        lines: list[Line] = []
        for line in (*self._lines, ((self._question, "strong"),)):
            lines += hanging(line, view.size.width)
        view.show(lines)

    def on_resize(self) -> None:
        """Lines break elsewhere."""
        self.call_after_refresh(self._show_lines)

    def action_answer(self, answer: bool) -> None:
        """Close with it."""
        self.dismiss(answer)


class PromptDialog(ModalScreen["str | None"]):
    """One line to type; Enter takes it, Escape does not."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel")]
    DEFAULT_CSS = """
    PromptDialog { align: center middle; }
    PromptDialog > Vertical {
        width: 80%; max-width: 80; height: auto; border: round $primary; background: $surface; padding: 0 1;
    }
    PromptDialog Input, PromptDialog Input:focus { border: none; height: 1; padding: 0; }
    """

    def __init__(self, title: str, hint: str, value: str = "") -> None:
        super().__init__()
        self._heading = title
        self._hint = hint
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical():
            yield LineView(id="hint")
            yield TypedLine(self._value)

    def on_mount(self) -> None:
        """Show the hint and take the keys."""
        self.query_one(Vertical).border_title = self._heading
        self.query_one(Input).focus()
        self.call_after_refresh(self._show_hint)

    def on_resize(self) -> None:
        """Lines break elsewhere."""
        self.call_after_refresh(self._show_hint)

    def _show_hint(self) -> None:
        view = self.query_one("#hint", LineView)
        view.show(wrapped(self._hint, view.size.width, "dim"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the line."""
        event.stop()
        self.dismiss(event.value.strip() or None)

    def action_cancel(self) -> None:
        """Leave without an answer."""
        self.dismiss(None)
