"""A recording of the node: one snapshot per line of JSON below a line that says what the file is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gputune_tui.domain.plain import from_plain, to_plain
from gputune_tui.domain.telemetry import NodeSnapshot
from gputune_tui.errors import EnvironmentProblem, ProtocolError, UsageError

SCHEMA = 1
KIND = "gputune-tui node recording"


class Recorder:
    """Writes a new recording. What it has taken is in the file, whatever ends the program."""

    def __init__(self, path: Path) -> None:
        """Create the file.

        Raises:
            UsageError: it is there already, or cannot be created.
        """
        self._path = path
        try:
            self._file: IO[str] = path.open("x", encoding="utf-8")
            self._file.write(json.dumps({"kind": KIND, "schema": SCHEMA}) + "\n")
        except FileExistsError:
            raise UsageError(f"{path} is already there; remove it or record into another file") from None
        except OSError as error:
            raise UsageError(f"cannot record into {path}: {error.strerror}; name a file that can be written") from None

    def take(self, snapshot: NodeSnapshot) -> None:
        """Add a snapshot.

        Raises:
            EnvironmentProblem: the disk is full, or the like; no later snapshot is taken either.
        """
        if self._file.closed:
            return
        try:
            self._file.write(json.dumps(to_plain(snapshot), separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            self.close()
            raise EnvironmentProblem(
                f"the recording {self._path} has ended: {error.strerror}; what it holds can be played"
            ) from None

    def close(self) -> None:
        """End the recording."""
        with contextlib.suppress(OSError):
            self._file.close()


def read_recording(path: Path) -> Iterator[NodeSnapshot]:
    """Its snapshots, one after the other, without holding them; a last line that was cut off is left out.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            _check_head(path, file.readline())
            for number, line in enumerate(file, 2):
                if not line.endswith("\n"):
                    return
                yield _snapshot(path, number, line)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _check_head(path: Path, line: str) -> None:
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get("kind") != KIND:
        raise UsageError(f"{path} is no recording of a node; `gputune-tui monitor --record FILE` makes one")
    if head.get("schema") != SCHEMA:
        raise UsageError(f"{path} has schema {head.get('schema')!r}, and this version plays schema {SCHEMA}")


def _snapshot(path: Path, number: int, line: str) -> NodeSnapshot:
    try:
        return from_plain(NodeSnapshot, json.loads(line))
    except (ValueError, ProtocolError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: line {number} is no snapshot ({error})") from None
