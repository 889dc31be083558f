"""Where and in which form a trial's settings are written, with a look at what the file would hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input

from gputune_tui.engine.events import Previewed
from gputune_tui.engine.requests import Export
from gputune_tui.export.formats import FORMATS, Format
from gputune_tui.tui.widgets.fields import TypedLine
from gputune_tui.tui.widgets.lines import Line, LineView, hanging, wrapped
from gputune_tui.tui.widgets.rows import ListRow, RowList

HINT = "Enter writes the file, Escape does not."


class ExportDialog(ModalScreen["Export | None"]):
    """The formats, a preview of the chosen one, and the file's name; Enter takes them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel"),
        Binding("down", "choose(1)", "next format", show=False),
        Binding("up", "choose(-1)", "previous format", show=False),
        Binding("pagedown", "scroll(10)", "page down", show=False),
        Binding("pageup", "scroll(-10)", "page up", show=False),
    ]
    DEFAULT_CSS = """
    ExportDialog { align: center middle; }
    ExportDialog > Vertical {
        width: 95%; max-width: 130; height: 90%; border: round $primary; background: $surface; padding: 0 1;
    }
    ExportDialog Horizontal { height: 1fr; }
    ExportDialog RowList { width: 16; }
    ExportDialog VerticalScroll { width: 1fr; scrollbar-gutter: stable; scrollbar-size-vertical: 1; }
    ExportDialog Input, ExportDialog Input:focus { border: none; height: 1; padding: 0; background: $boost; }
    """

    def __init__(self, trial_id: int, ask: Callable[[str], None]) -> None:
        """`ask` is called with a format's name whose preview is wanted; `show` takes it."""
        super().__init__()
        self._trial_id = trial_id
        self._ask = ask
        self._format = FORMATS[0]
        self._preview: Previewed | None = None
        self._told = (HINT, "dim")
        self._objected: str | None = None

    def compose(self) -> ComposeResult:
        with Vertical():
            with Horizontal():
                yield RowList(id="formats")
                with VerticalScroll(can_focus=False):
                    yield LineView(id="preview")
            yield LineView(id="told")
            yield TypedLine(self._format.file_name)

    def on_mount(self) -> None:
        """Fill the list and take the keys."""
        box = self.query_one(Vertical)
        box.border_title = f"Export trial {self._trial_id}"
        box.border_subtitle = "↑↓ format · PgUp PgDn preview · Enter writes · Esc"
        formats = self.query_one("#formats", RowList)
        formats.can_focus = False
        formats.fill(None, [ListRow(found, ((found.name, "accent"),)) for found in FORMATS])
        self.query_one(Input).focus()
        self._choose(self._format)

    def on_resize(self) -> None:
        """Lines break elsewhere."""
        self.call_after_refresh(self._show_all)

    def show(self, preview: Previewed) -> None:
        """What the file would hold; that of another format comes too late and is dropped."""
        if (preview.trial_id, preview.target) == (self._trial_id, self._format.name):
            self._preview = preview
            self._show_all()

    def action_choose(self, step: int) -> None:
        """Take the next format. The name follows as long as it is none of the user's own."""
        formats, line = self.query_one("#formats", RowList), self.query_one(Input)
        before = self._format
        formats.move(step)
        chosen = formats.cursor
        if not isinstance(chosen, Format) or chosen == before:
            return
        if line.value == before.file_name:
            line.value = chosen.file_name
            line.select_all()  # what is typed now takes its place, as at the beginning
        self._choose(chosen)

    def _choose(self, chosen: Format) -> None:
        self._format, self._preview = chosen, None
        self._told, self._objected = (f"{chosen.name}: {chosen.help}. {HINT}", "dim"), None
        self.query_one(VerticalScroll).scroll_home(animate=False)
        self._ask(chosen.name)
        self.call_after_refresh(self._show_all)

    def _show_all(self) -> None:
        view, told = self.query_one("#preview", LineView), self.query_one("#told", LineView)
        view.show(self._preview_lines(view.size.width))
        told.show(wrapped(self._told[0], told.size.width, self._told[1]))

    def _preview_lines(self, width: int) -> list[Line]:
        preview = self._preview
        if preview is None:
            return [(("...", "dim"),)]
        if preview.problem is not None:
            return wrapped(preview.problem, width, "bad")
        lines: list[Line] = []
        for text in preview.text.splitlines():
            lines += hanging(((text, "dim" if text.startswith("#") else ""),), width)
        return lines

    def action_scroll(self, lines: int) -> None:
        """Scroll the preview."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Write, unless there is something to be read first; Enter on the same name passes over it."""
        event.stop()
        path = event.value.strip()
        if not path:
            self.dismiss(None)
            return
        exists = _is_there(path)
        if exists and self._objected != path:
            self._objected = path
            self._told = (f"{path} is already there; Enter once more replaces it", "warn")
            self._show_all()
            return
        self.dismiss(Export(self._trial_id, self._format.name, path, exists))

    def action_cancel(self) -> None:
        """Write nothing."""
        self.dismiss(None)


def _is_there(path: str) -> bool:
    try:
        return os.path.lexists(os.path.expanduser(path))
    except ValueError:
        return False  # no file can have that name, as the engine will say
