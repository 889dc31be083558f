"""The one table of keys: bindings, footer, palette and help are made from it."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding


@dataclass(frozen=True)
class Action:
    """Something a key does; `action_<name>` of the main screen carries it out."""

    name: str
    keys: tuple[str, ...]
    """As textual names them; the first one is shown."""
    label: str
    """One or two words for the footer."""
    help: str
    in_footer: bool = False

    def binding(self) -> Binding:
        """For BINDINGS."""
        return Binding(",".join(self.keys), self.name, self.label, show=self.in_footer, id=self.name)


ACTIONS: tuple[Action, ...] = (
    Action("run_b", ("r",), "run B", "Run one trial of B. A setting that was measured before is asked about.", True),
    Action("compare", ("a",), "A/B", "Compare B with A in interleaved blocks until there is a verdict.", True),
    Action("search", ("u",), "auto", "Start the search over the space; once more stops it.", True),
    Action("stop", ("s",), "stop", "End what runs; its trial is stored as interrupted. Results so far are kept.", True),
    Action("crown", ("c",), "crown", "Make B the new A: differences and ratios are shown against it.", True),
    Action("export", ("e",), "export", "Write the selected trial's settings as YAML.", True),
    Action("open", ("w",), "workload", "Choose a workload, its options, device, budget and global batch.", True),
    Action("help", ("question_mark", "f1"), "help", "Keys, marks and terms.", True),
    Action("quit", ("q", "f10"), "quit", "End the program. What runs is ended, results are kept.", True),
    Action("take_row", ("b",), "row to B", "Give B the settings of the selected row."),
    Action("step(1)", ("right", "l", "plus"), "next value", "Next value of the selected knob of B."),
    Action("step(-1)", ("left", "h", "minus"), "previous value", "Previous value of the selected knob of B."),
    Action(
        "enter",
        ("enter",),
        "value, detail",
        "Type a value for B's knob, or read all about the trial.",
    ),
    Action("reset_b", ("backspace",), "B = A", "Make B equal to A again."),
    Action("move(1)", ("down", "j"), "down", "Move the selection down."),
    Action("move(-1)", ("up", "k"), "up", "Move the selection up."),
    Action("move(10)", ("pagedown",), "page down", "Move the selection down by ten."),
    Action("move(-10)", ("pageup",), "page up", "Move the selection up by ten."),
    Action("other_list", ("tab", "shift+tab"), "knobs/trials", "Go to the other list: knobs or trials."),
    Action("messages", ("m",), "messages", "What was said so far, newest last."),
    Action("show_monitor", ("1", "f3"), "monitor", "Show the node (below 120 columns one pane at a time)."),
    Action("show_tune", ("2", "f4"), "tune", "Show the tuning pane."),
    Action("pause", ("z",), "pause", "Hold the node's panels still; once more lets them go on."),
)


def bindings() -> list[Binding]:
    """All of them, for the main screen."""
    return [action.binding() for action in ACTIONS]


def key_text(key: str) -> str:
    """A key as it is written on keyboards."""
    names = {"question_mark": "?", "plus": "+", "minus": "-", "pagedown": "PgDn", "pageup": "PgUp"}
    names |= {"right": "→", "left": "←", "up": "↑", "down": "↓", "backspace": "Backspace", "shift+tab": "Shift+Tab"}
    return names.get(key, key.capitalize() if len(key) > 1 else key)
