"""Choose what is tuned: a workload and its options, the device, the budget, the global batch and the study."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input

from gputune_tui.domain.builtin import builtin_names, builtin_path, summary
from gputune_tui.domain.study import WorkloadRef, read_workload_options
from gputune_tui.engine.commands import StudyConfig
from gputune_tui.errors import UsageError
from gputune_tui.tui.widgets.fields import TypedLine
from gputune_tui.tui.widgets.lines import LineView, wrapped
from gputune_tui.tui.widgets.rows import ListRow, RowList


@dataclass(frozen=True)
class Field:
    """One line of the form."""

    name: str
    label: str
    placeholder: str
    read: Callable[[StudyConfig], str]
    """Its text for a configuration."""


def _text(value: object) -> str:
    return "" if value is None else str(value)


COMMAND = "--"
"""What a command begins with, as on the command line."""


def _named(config: StudyConfig) -> str:
    workload = config.workload
    return f"{COMMAND} {shlex.join(workload.command)}" if workload.command else workload.name


FIELDS = (
    Field("workload", "workload", "lm, ./file.py:Class, package.module:Class, or -- python train.py ...", _named),
    Field(
        "options",
        "options (-D)",
        "size=tiny data=/data/text.txt",
        lambda c: shlex.join(f"{key}={value}" for key, value in c.workload.options.items()),
    ),
    Field("device", "device", "cpu, cuda, cuda:1; empty: a usable GPU, else the CPU", lambda c: _text(c.device)),
    Field("budget", "budget", "20GiB or 80%; empty: 90 % of what is free", lambda c: _text(c.budget)),
    Field("batch", "global batch", "samples per step; empty: the workload's own", lambda c: _text(c.global_batch_size)),
    Field("study", "study", "directory of the results; empty: the default place", lambda c: _text(c.study)),
)


def read_form(texts: dict[str, str], before: StudyConfig | None) -> StudyConfig:
    """The configuration of a filled form; what the form does not ask for stays as it was.

    Raises:
        UsageError: a field that cannot be read, in one sentence.
    """
    given = {name: text.strip() for name, text in texts.items()}
    if not given["workload"]:
        raise UsageError("no workload is named; choose one of the list or type the path of a file")
    try:
        options = read_workload_options(shlex.split(given["options"]))
    except ValueError as error:
        raise UsageError(f"the options cannot be read: {error}") from None
    batch = given["batch"]
    if batch and not (batch.isdecimal() and int(batch) > 0):
        raise UsageError(f"{batch} is no global batch; write a whole number of samples")
    workload = _workload(given["workload"], options)
    if before is not None and before.workload.command and before.workload.command == workload.command:
        workload = before.workload  # with what the form does not show: --flag, --samples-per-step
    return replace(
        before or StudyConfig(workload),
        workload=workload,
        device=given["device"] or None,
        budget=given["budget"] or None,
        global_batch_size=int(batch) if batch else None,
        study=given["study"] or None,
    )


def _workload(text: str, options: dict[str, str]) -> WorkloadRef:
    """What the first field names.

    Raises:
        UsageError: a command that cannot be split into words, or that has options.
    """
    if text.split(maxsplit=1)[0] != COMMAND:
        return WorkloadRef(text, options)
    try:
        command = tuple(shlex.split(text)[1:])
    except ValueError as error:
        raise UsageError(f"the command cannot be read: {error}") from None
    if not command:
        raise UsageError("nothing follows --; write for example -- python train.py")
    if options:
        raise UsageError("options (-D) are for workloads; give a command its options in the command itself")
    return WorkloadRef(" ".join(command), command=command)


class OpenDialog(ModalScreen["StudyConfig | None"]):
    """A form over the list of built-in workloads."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "cancel", "cancel"),
        # With priority, so that what was typed after it in the same moment goes to the next field already.
        Binding("tab", "app.focus_next", "next field", show=False, priority=True),
        Binding("shift+tab", "app.focus_previous", "previous field", show=False, priority=True),
        Binding("down", "choose(1)", "next workload", show=False),
        Binding("up", "choose(-1)", "previous workload", show=False),
    ]
    DEFAULT_CSS = """
    OpenDialog { align: center middle; }
    OpenDialog > VerticalScroll {
        width: 95%; max-width: 100; height: auto; max-height: 95%;
        border: round $primary; background: $surface; padding: 0 1;
    }
    OpenDialog RowList { height: auto; max-height: 6; }
    OpenDialog Horizontal { height: 1; }
    OpenDialog .label { width: 14; }
    OpenDialog Input { border: none; height: 1; padding: 0; width: 1fr; }
    OpenDialog Input:focus { border: none; background: $boost; }
    """

    def __init__(self, config: StudyConfig | None) -> None:
        super().__init__()
        self._config = config
        self._names = builtin_names()

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield RowList(id="builtin")
            for field in FIELDS:
                with Horizontal():
                    label = LineView(classes="label")
                    label.show([((field.label, "dim"),)])
                    yield label
                    value = field.read(self._config) if self._config is not None else ""
                    yield TypedLine(value, field.placeholder, id=f"field-{field.name}")
            yield LineView(id="objection")

    def on_mount(self) -> None:
        """Fill the list and take the keys."""
        box = self.query_one(VerticalScroll)
        box.border_title, box.border_subtitle = "Workload", "↑↓ built-in · Tab field · Enter opens · Esc"
        builtin = self.query_one("#builtin", RowList)
        builtin.can_focus = False
        rows = []
        for name in self._names:
            path = builtin_path(name)
            rows.append(ListRow(name, ((f"{name:<13}", "accent"), (summary(path) if path else "", "dim"))))
        builtin.fill(None, rows)
        field = self.query_one("#field-workload", Input)
        if field.value in self._names:
            builtin.select(field.value)
        elif not field.value and self._names:
            field.value = str(builtin.cursor)
        field.focus()

    def action_choose(self, step: int) -> None:
        """Take the next built-in workload; its options are not those of the one before."""
        builtin, field = self.query_one("#builtin", RowList), self.query_one("#field-workload", Input)
        if field.value in self._names:
            builtin.move(step)
        field.value = str(builtin.cursor)
        field.cursor_position = len(field.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Read the form."""
        event.stop()
        texts = {field.name: self.query_one(f"#field-{field.name}", Input).value for field in FIELDS}
        try:
            config = read_form(texts, self._config)
        except UsageError as error:
            objection = self.query_one("#objection", LineView)
            objection.show(wrapped(str(error), objection.size.width, "bad"))
            return
        self.dismiss(config)

    def action_cancel(self) -> None:
        """Leave things as they are."""
        self.dismiss(None)
