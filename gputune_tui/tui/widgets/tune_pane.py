"""The right half: knobs of A and B, the leaderboard, and what runs. It owns the state of the tuning."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from gputune_tui.domain.choices import BATCH, stepped, with_value
from gputune_tui.domain.knobs import read_value
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import TrialState
from gputune_tui.engine.commands import Compare, RunSettings, Search
from gputune_tui.engine.events import EngineEvent
from gputune_tui.engine.requests import Cancel, Do, Request, Share
from gputune_tui.errors import UsageError
from gputune_tui.ranking.leaderboard import Row
from gputune_tui.tui import tune_lines
from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.tune_state import TuneState
from gputune_tui.tui.widgets.lines import LineView
from gputune_tui.tui.widgets.rows import RowList


class TunePane(Vertical):
    """Turns keys into requests and events into lines."""

    DEFAULT_CSS = """
    TunePane {
        width: 1fr;
        LineView { border: round $panel-lighten-2; }
        RowList:focus { border: round $primary; }
        #knobs { height: auto; max-height: 50%; }
        #board { height: 1fr; min-height: 4; }
        #running { height: 6; }
    }
    """

    class Changed(Message):
        """Something of the state that others show, or that decides which keys work, is another."""

    def __init__(self, glyphs: Glyphs, send: Callable[[Request], None], search: Search, *, id: str) -> None:  # noqa: A002  # textual
        super().__init__(id=id)
        self._glyphs = glyphs
        self._send = send
        self._search = search
        self._asked: TrainSettings | None = None
        self._ordered: tuple[Do, str] | None = None
        self.state = TuneState()

    @property
    def knobs(self) -> RowList:
        """The table of knobs."""
        return self.query_one("#knobs", RowList)

    @property
    def board(self) -> RowList:
        """The leaderboard."""
        return self.query_one("#board", RowList)

    @property
    def is_in_board(self) -> bool:
        """Whether the keys go to the leaderboard. A widget itself learns only later that it has the focus."""
        return self.is_attached and self.screen.focused is self.board

    def other_list(self) -> None:
        """Knobs or trials."""
        # At once: the next key may be there already.
        self.screen.set_focus(self.knobs if self.is_in_board else self.board)

    @property
    def selected(self) -> Row | None:
        """The selected row of the leaderboard."""
        board, key = self.state.board, self.board.cursor
        return board.row(key) if board is not None and isinstance(key, int) else None

    @property
    def can_export(self) -> bool:
        """Whether the selected row can be exported."""
        return self.selected is not None and self.selected.trial.state is TrialState.COMPLETE

    def compose(self) -> ComposeResult:
        yield RowList(id="knobs")
        yield RowList(id="board")
        yield LineView(id="running")

    def on_mount(self) -> None:
        """First lines."""
        self.redraw()
        self.knobs.focus()

    def on_resize(self) -> None:
        """Columns have another width."""
        self.call_after_refresh(self.redraw)

    def take(self, events: list[EngineEvent]) -> None:
        """Take in what the engine said."""
        for event in events:
            self.state.take(event)
        self.redraw()
        self.post_message(self.Changed())

    def redraw(self) -> None:
        """Show the state in the present width."""
        if not self.is_mounted:
            return
        state, glyphs, knobs, board = self.state, self._glyphs, self.knobs, self.board
        running = self.query_one("#running", LineView)
        width = max(20, knobs.size.width)
        knobs.name_panel(*tune_lines.setup_title(state))
        knobs.fill(tune_lines.knob_header(width), tune_lines.knob_rows(state, width, glyphs))
        board.name_panel(*tune_lines.board_title(state))
        board.fill(tune_lines.board_header(state, width), tune_lines.board_rows(state, width, glyphs))
        running.name_panel(*tune_lines.running_title(state))
        running.show(tune_lines.running_lines(state, width, glyphs, max(tune_lines.RUNNING_LINES, running.size.height)))

    def say(self, text: str, is_error: bool = False) -> None:
        """Tell something in the last line."""
        self.state.say(text, is_error)
        self.redraw()

    def step(self, direction: int) -> None:
        """Step the selected knob of B."""
        name, ground, b = self.knobs.cursor, self.state.ground, self.state.b
        if isinstance(name, str) and ground is not None and b is not None:
            self._set_b(stepped(b, name, direction, ground))

    def type_value(self, text: str) -> None:
        """Set the selected knob of B to a value that was typed; what it cannot be is said."""
        name, ground, b = self.knobs.cursor, self.state.ground, self.state.b
        if not isinstance(name, str) or ground is None or b is None:
            return
        try:
            value = read_value(name, text)
        except UsageError as error:
            self.say(str(error), is_error=True)
            return
        changed = with_value(b, name, value, ground)
        if changed is None:
            self.say(f"{text} does not divide the global batch of {ground.global_batch_size}", is_error=True)
        else:
            if name != BATCH and getattr(changed, name) != value:
                self.say(f"{name}={text} makes no difference with the other values of B")
            self._set_b(changed)

    def reset_b(self) -> None:
        """B is A again."""
        if self.state.a is not None:
            self._set_b(self.state.a)

    def take_row(self) -> None:
        """B gets the settings of the selected row."""
        if self.selected is not None:
            self._set_b(self.selected.trial.settings)

    def crown(self) -> None:
        """B becomes A."""
        self.state.crown()
        self.redraw()

    def run_b(self) -> None:
        """Run one trial of B; one that has been measured only when asked twice."""
        b = self.state.b
        if b is None:
            return
        known = self.state.measured(b)
        if known is not None and self._asked != b:
            self._asked = b
            self.board.select(known.id)
            self.say(f"trial {known.id} has measured B; r once more measures it again")
            return
        self._asked = None
        self._request(Do(RunSettings(b)), "a trial of B")

    def compare(self) -> None:
        """A against B."""
        a, b = self.state.a, self.state.b
        if a is None or b is None:
            return
        self._request(Do(Compare(a.as_dict(), b.as_dict())), "A against B")

    def search(self) -> None:
        """Start the search, or stop it."""
        if self.state.task == "search":
            self.stop()
        elif self.state.opened is not None:
            self._request(Do(self._search), "the search")

    def stop(self) -> None:
        """End what runs and forget what waits."""
        if self.state.task is not None or self.state.waiting:
            self._send(Cancel())
            self.say("stopping")

    def share(self) -> None:
        """Give the last command again, and let it measure beside whoever uses the device."""
        if self._ordered is not None:
            self._send(Share())
            self._request(*self._ordered)

    def _request(self, request: Do, what: str) -> None:
        self._ordered = request, what
        self._send(request)
        if self.state.task is not None:
            self.say(f"{what} waits until what runs is over; s stops it")

    def _set_b(self, settings: TrainSettings) -> None:
        if settings != self.state.b:
            self.state.b = settings
            self._asked = None
            self.redraw()
