"""Which signal to send to a process: nothing is sent unless one is chosen."""

from __future__ import annotations

import signal
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen

from gputune_tui.domain.telemetry import ProcessSnapshot
from gputune_tui.errors import EnvironmentProblem
from gputune_tui.telemetry.signals import send_signal, why_not
from gputune_tui.tui.widgets.lines import Line, LineView, wrapped
from gputune_tui.tui.widgets.rows import ListRow, RowList

CHOICES: tuple[tuple[signal.Signals | None, str], ...] = (
    (None, "send nothing"),
    (signal.SIGTERM, "ask it to end"),
    (signal.SIGINT, "interrupt it, as Ctrl-C does"),
    (signal.SIGHUP, "tell it that its terminal is gone"),
    (signal.SIGKILL, "end it at once; it cannot tidy up"),
    (signal.SIGSTOP, "hold it"),
    (signal.SIGCONT, "let it go on"),
    (signal.SIGUSR1, "as it likes"),
    (signal.SIGUSR2, "as it likes"),
)
CANCEL = "Cancel"
COMMAND_LINES = 3


class SignalDialog(ModalScreen[None]):
    """Begins on Cancel; what the system refuses is said here."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "close"),
        Binding("enter", "choose", "send"),
        Binding("j,down", "move(1)", "down", show=False),
        Binding("k,up", "move(-1)", "up", show=False),
    ]
    DEFAULT_CSS = """
    SignalDialog { align: center middle; }
    SignalDialog > Vertical {
        width: 80%; max-width: 72; height: auto; max-height: 90%; border: round $primary; background: $surface;
        padding: 0 1;
    }
    SignalDialog RowList, SignalDialog RowList:focus { height: auto; max-height: 9; border: none; }
    SignalDialog LineView { border: none; }
    """

    def __init__(self, process: ProcessSnapshot, is_readonly: bool) -> None:
        super().__init__()
        self._process = process
        self._refusal = why_not(process)
        if is_readonly:
            self._refusal = "nothing is sent here: this is a recording, or the program was started with --readonly"

    def compose(self) -> ComposeResult:
        with Vertical():
            yield LineView(id="what")
            yield RowList(id="choices")
            yield LineView(id="said")

    def on_mount(self) -> None:
        """Show what it is about."""
        box = self.query_one(Vertical)
        box.border_title, box.border_subtitle = f"Signal to process {self._process.pid}", "Enter sends, Esc cancels"
        choices = self.query_one(RowList)
        choices.focus()
        self.call_after_refresh(self._show)

    def on_resize(self) -> None:
        """Lines break elsewhere."""
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        view, choices = self.query_one("#what", LineView), self.query_one(RowList)
        view.show(wrapped(self._process.command or "its command cannot be read", view.size.width, "", COMMAND_LINES))
        rows: list[ListRow] = []
        for number, meaning in CHOICES[: 1 if self._refusal else None]:
            name = CANCEL if number is None else f"{number.name} {int(number)}"
            line: Line = ((f" {name:<12} ", "strong" if number is None else ""), (meaning, "dim"))
            rows.append(ListRow(name, line))
        choices.fill(None, rows)
        if self._refusal:
            self._say(self._refusal)

    def _say(self, text: str) -> None:
        view = self.query_one("#said", LineView)
        view.show(wrapped(text, view.size.width, "warn"))

    def action_move(self, step: int) -> None:
        """Another choice."""
        self.query_one(RowList).move(step)

    def action_choose(self) -> None:
        """Send the selected one, and say why where that fails."""
        cursor = self.query_one(RowList).cursor
        number = next((n for n, _ in CHOICES if n is not None and f"{n.name} {int(n)}" == cursor), None)
        if number is None or self._refusal:
            self.dismiss(None)
            return
        try:
            send_signal(self._process, number)
        except EnvironmentProblem as error:
            self._say(str(error))
            return
        self.dismiss(None)

    def action_close(self) -> None:
        """Send nothing."""
        self.dismiss(None)
