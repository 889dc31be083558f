"""JSON lines between a screen and its engine: `{"v": 1, "kind": NAME, ...}`, and the reader that splits a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from gputune_tui.domain.plain import from_plain, to_plain
from gputune_tui.errors import ProtocolError

VERSION = 1
T = TypeVar("T")


def tagged(message: object) -> dict[str, Any]:
    """A dataclass as a plain object that names its class."""
    return {"kind": type(message).__name__, **to_plain(message)}


def to_line(kind: str, fields: Mapping[str, Any]) -> bytes:
    """One line, newline included."""
    line = {"v": VERSION, "kind": kind, **fields}
    return json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def read_tagged(line: bytes) -> tuple[str, dict[str, Any]]:
    """The kind and the fields of one line.

    Raises:
        ProtocolError: not JSON, or of another version.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError("not JSON") from None
    if not isinstance(data, dict) or data.pop("v", None) != VERSION:
        raise ProtocolError(f"not a message of protocol version {VERSION}")
    return str(data.pop("kind", None)), data


def decode_tagged(kinds: Mapping[str, type[T]], kind: str, fields: Mapping[str, Any]) -> T:
    """Build the class that `kind` names.

    Raises:
        ProtocolError: an unknown kind, or a wrong field.
    """
    cls = kinds.get(kind)
    if cls is None:
        raise ProtocolError(f"unknown message {kind[:40]!r}")
    return from_plain(cls, fields)


def from_tagged(kinds: Mapping[str, type[T]], data: object) -> T:
    """Build what `tagged` made.

    Raises:
        ProtocolError: see `decode_tagged`.
    """
    if not isinstance(data, dict):
        raise ProtocolError(f"expected an object with a kind, got {type(data).__name__}")
    return decode_tagged(kinds, str(data.get("kind")), {key: value for key, value in data.items() if key != "kind"})


class LineReader:
    """Splits a stream into lines; of a line that is too long nothing is kept."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._rest = bytearray()
        self._skipping = False
        self.too_long = 0
        """Lines that were left out."""

    def feed(self, data: bytes) -> list[bytes]:
        """The whole lines that `data` completes, without their newlines."""
        first, newline, more = data.partition(b"\n")
        self._take(first)
        if not newline:
            return []
        lines = [] if self._skipping else [bytes(self._rest)]
        self._rest.clear()
        self._skipping = False
        *whole, rest = more.split(b"\n")
        for line in whole:
            self._take(line)
            if not self._skipping:
                lines.append(bytes(self._rest))
            self._rest.clear()
            self._skipping = False
        self._take(rest)
        return lines

    def _take(self, part: bytes) -> None:
        if self._skipping:
            return
        self._rest += part
        if len(self._rest) > self._limit_bytes:
            self._rest.clear()
            self._skipping = True
            self.too_long += 1
