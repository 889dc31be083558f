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
    pane: str = ""
    """"tune" or "node": which pane must have the keys; with neither it works in both."""

    def binding(self) -> Binding:
        """For BINDINGS."""
        return Binding(",".join(self.keys), self.name, self.label, show=self.in_footer, id=self.name)


ACTIONS: tuple[Action, ...] = (
    Action(
        "run_b", ("r",), "run B", "Run one trial of B. A setting that was measured before is asked about.", True, "tune"
    ),
    Action("compare", ("a",), "A/B", "Compare B with A in interleaved blocks until there is a verdict.", True, "tune"),
    Action("search", ("u",), "auto", "Start the search over the space; once more stops it.", True, "tune"),
    Action(
        "stop",
        ("s",),
        "stop",
        "End what runs; its trial is stored as interrupted. Results so far are kept.",
        True,
        "tune",
    ),
    Action("crown", ("c",), "crown", "Make B the new A: differences and ratios are shown against it.", True, "tune"),
    Action("export", ("e",), "export", "Write the selected trial's settings as YAML.", True, "tune"),
    Action(
        "open", ("w",), "workload", "Choose a workload, its options, device, budget and global batch.", True, "tune"
    ),
    Action("help", ("question_mark", "f1"), "help", "Keys, marks and terms.", True),
    Action("quit", ("q", "f10"), "quit", "End the program. What runs is ended, results are kept.", True),
    Action("take_row", ("b",), "row to B", "Give B the settings of the selected row.", False, "tune"),
    Action("step(1)", ("right", "l"), "next value", "Next value of the selected knob of B; the GPU to the right."),
    Action(
        "step(-1)", ("left", "h"), "previous value", "Previous value of the selected knob of B; the GPU to the left."
    ),
    Action(
        "enter",
        ("enter",),
        "value, detail",
        "Type a value for B's knob, read all about the trial, or open the GPU or process in place.",
    ),
    Action("reset_b", ("backspace",), "B = A", "Make B equal to A again.", False, "tune"),
    Action("move(1)", ("down", "j"), "down", "Move the selection down."),
    Action("move(-1)", ("up", "k"), "up", "Move the selection up."),
    Action("move(10)", ("pagedown",), "page down", "Move the selection down by ten."),
    Action("move(-10)", ("pageup",), "page up", "Move the selection up by ten."),
    Action(
        "other_list",
        ("tab", "shift+tab"),
        "other list",
        "Go to the other list of the pane: knobs or trials, GPUs or processes.",
    ),
    Action("messages", ("m",), "messages", "What was said so far, newest last.", False, "tune"),
    Action(
        "show_monitor", ("1", "f3"), "monitor", "Show the node (below 120 columns one pane at a time).", False, "tune"
    ),
    Action("show_tune", ("2", "f4"), "tune", "Show the tuning pane.", False, "tune"),
    Action("pause", ("z",), "pause", "Hold the node's panels still; once more lets them go on."),
    Action("tree", ("t", "f5"), "tree", "Show processes below their parents; once more as a list.", True, "node"),
    Action("sort(1)", ("greater_than_sign", "f6"), "sort", "Sort the processes by the next column.", True, "node"),
    Action("sort(-1)", ("less_than_sign",), "sort back", "Sort the processes by the column before.", False, "node"),
    Action("invert", ("I",), "invert", "Turn the order of the processes round.", False, "node"),
    Action(
        "filter",
        ("slash", "backslash"),
        "filter",
        "Show only processes with these words in them; a word after ! must not be there.",
        True,
        "node",
    ),
    Action(
        "signal",
        ("x", "f9"),
        "signal",
        "Send a signal to the selected process, if it is yours; asks which one.",
        True,
        "node",
    ),
    Action("interval(1)", ("plus", "equals_sign"), "slower", "Read the node every half second less often."),
    Action("interval(-1)", ("minus",), "faster", "Read the node every half second more often, at most twice a second."),
    Action("zoom(1)", ("right_square_bracket",), "longer", "Show a longer past in the graphs."),
    Action("zoom(-1)", ("left_square_bracket",), "shorter", "Show a shorter past in the graphs."),
)


def bindings(pane: str = "") -> list[Binding]:
    """All of them, for the main screen; with a pane's name what a screen with that pane alone can do."""
    return [action.binding() for action in ACTIONS if not pane or action.pane in ("", pane)]


def pane_of(name: str) -> str:
    """Which pane must have the keys for an action, by its name without parameters."""
    return next((action.pane for action in ACTIONS if action.name.partition("(")[0] == name), "")


def key_text(key: str) -> str:
    """A key as it is written on keyboards."""
    names = {"question_mark": "?", "plus": "+", "minus": "-", "pagedown": "PgDn", "pageup": "PgUp"}
    names |= {"greater_than_sign": ">", "less_than_sign": "<", "slash": "/", "backslash": "\\", "equals_sign": "="}
    names |= {"right_square_bracket": "]", "left_square_bracket": "["}
    names |= {"right": "→", "left": "←", "up": "↑", "down": "↓", "backspace": "Backspace", "shift+tab": "Shift+Tab"}
    return names.get(key, key.capitalize() if len(key) > 1 else key)
