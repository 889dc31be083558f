"""The screen, started without a sub-command: `gputune-tui [WORKLOAD] ...`."""

from __future__ import annotations

import gc
import os
from typing import Any

from gputune_tui.cli.options import interval_of, study_config
from gputune_tui.domain.builtin import builtin_names
from gputune_tui.domain.study import names_file, split_name
from gputune_tui.engine.commands import Search
from gputune_tui.errors import UsageError


def names_workload(word: str) -> bool:
    """Whether a first word can mean a workload: a built-in, a file, or module:Class."""
    target, class_name = split_name(word)
    return word in builtin_names() or names_file(target) or class_name is not None


def screen(command: tuple[str, ...] | None, given: dict[str, Any]) -> int:
    """Body of the command; returns the screen's exit code.

    Raises:
        UsageError: an option that cannot be read, or a command without its samples.
        EnvironmentProblem: no terminal.
    """
    names = given["workload"]
    for name in names[:1]:
        if not names_workload(name):
            raise UsageError(
                f"there is no command and no built-in workload {name!r}; a workload of your own is named ./{name}.py "
                "or package.module:Class, and gputune-tui --help lists the commands"
            )
    # Without a workload the form asks for one, and begins with the other options as they were given.
    config = study_config(command, given if names or command is not None else {**given, "workload": ("",)})
    search = Search(given["space"], given["sampler"], race=given["race"])
    interval_s = interval_of(given["interval"])
    if given["low_bandwidth"]:
        # Read by textual when it is imported.
        os.environ.setdefault("TEXTUAL_FPS", "10")
    # Until the screen stands nothing is thrown away: the collector would only look through what is being built.
    gc.disable()
    from gputune_tui.tui.app import ScreenOptions, run_screen

    options = ScreenOptions(given["ascii_only"], given["mouse"], given["low_bandwidth"], interval_s, given["readonly"])
    return run_screen(config, search, options)
