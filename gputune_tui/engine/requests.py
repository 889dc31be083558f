"""What a screen asks of the engine process: plain, serialisable values, carried out in the order in which they came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from gputune_tui.domain.plain import to_plain
from gputune_tui.engine.commands import Command, StudyConfig
from gputune_tui.engine.wire import decode_tagged, from_tagged, read_tagged, tagged, to_line

MAX_REQUEST_BYTES = 1 << 20
"""A longer line is no request."""


@dataclass(frozen=True)
class Open:
    """Open a study. The one that is open stays until the new one is, and is then closed."""

    config: StudyConfig


@dataclass(frozen=True)
class Do:
    """Carry out a command on the open study, after what was asked before it."""

    command: Command


@dataclass(frozen=True)
class Export:
    """Write the settings of a trial to a file, at once: also while a trial runs."""

    trial_id: int | None
    """None is the best one."""
    target: str
    """Name of an export format."""
    path: str
    """Of the file, from the folder in which the program was started; `~` is the user's home."""
    force: bool = False
    """Replace an existing file."""


@dataclass(frozen=True)
class Preview:
    """Tell what `Export` would write, at once."""

    trial_id: int | None
    target: str


@dataclass(frozen=True)
class Share:
    """From now on, until another study is opened, measure although somebody else computes on the device."""


@dataclass(frozen=True)
class Cancel:
    """End what runs (its trial is stored as interrupted) and forget what waits."""


@dataclass(frozen=True)
class Shutdown:
    """As Cancel; then the study is closed and the process ends with exit code 0."""


Request = Open | Do | Share | Export | Preview | Cancel | Shutdown
_REQUESTS: dict[str, type[Request]] = {cls.__name__: cls for cls in get_args(Request)}
_COMMANDS: dict[str, type[Command]] = {cls.__name__: cls for cls in get_args(Command)}


def encode_request(request: Request) -> bytes:
    """One line, newline included."""
    if isinstance(request, Do):
        return to_line("Do", {"command": tagged(request.command)})
    return to_line(type(request).__name__, to_plain(request))


def decode_request(line: bytes) -> Request:
    """Read one line.

    Raises:
        ProtocolError: not JSON, of another version, an unknown request or command, or a wrong field.
    """
    kind, fields = read_tagged(line)
    if kind == "Do":
        return Do(from_tagged(_COMMANDS, fields.get("command")))
    return decode_tagged(_REQUESTS, kind, fields)
