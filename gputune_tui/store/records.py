"""The records of a journal: one JSON object a line, append-only, each with the schema's version."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gputune_tui.domain.plain import from_plain, to_plain
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import StudyIdentity
from gputune_tui.domain.trial import Trial
from gputune_tui.errors import ProtocolError

SCHEMA = 1


@dataclass(frozen=True)
class WriterStarted:
    """First record of a journal: who writes it, so that a reader can tell whether it still lives."""

    record: ClassVar[str] = "writer"
    host: str
    pid: int
    pid_started: str
    """Boot id and start time of the process: a pid alone is used again."""
    version: str
    time: float


@dataclass(frozen=True)
class GenerationOpened:
    """Trials from here on belong to this identity."""

    record: ClassVar[str] = "generation"
    generation: int
    identity: StudyIdentity
    time: float


@dataclass(frozen=True)
class OverheadMeasured:
    """The fixed memory overhead of a trial process, taken once for a generation."""

    record: ClassVar[str] = "overhead"
    generation: int
    fixed_overhead_bytes: int


@dataclass(frozen=True)
class TrialBegan:
    """A trial was launched."""

    record: ClassVar[str] = "began"
    generation: int
    trial_id: int
    settings: TrainSettings
    budget_bytes: int | None
    time: float
    host_budget_bytes: int | None = None


@dataclass(frozen=True)
class TrialEnded:
    """A trial ended; a later record of the same id takes its place."""

    record: ClassVar[str] = "ended"
    generation: int
    trial: Trial


Record = WriterStarted | GenerationOpened | OverheadMeasured | TrialBegan | TrialEnded
_RECORDS: dict[str, type[Record]] = {
    cls.record: cls for cls in (WriterStarted, GenerationOpened, OverheadMeasured, TrialBegan, TrialEnded)
}


class ForeignRecord(ProtocolError):
    """A well-formed line of another schema version or of an unknown kind."""


def encode_record(record: Record) -> bytes:
    """One line, newline included; NaN and infinity (a loss that was not finite) as Python's json writes them."""
    line = {"schema": SCHEMA, "record": record.record, **to_plain(record)}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def decode_record(line: bytes) -> Record:
    """Read one line.

    Raises:
        ForeignRecord: JSON, but not of this schema version or not a known kind.
        ProtocolError: anything else that is no record.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError("not a JSON object") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise ProtocolError("not a record")
    cls = _RECORDS.get(str(data.get("record")))
    if data["schema"] != SCHEMA:
        raise ForeignRecord(f"written in schema {data['schema']!r}, this version reads {SCHEMA}")
    if cls is None:
        raise ForeignRecord(f"an unknown kind of record {data.get('record')!r}")
    try:
        return from_plain(cls, {key: value for key, value in data.items() if key not in ("schema", "record")})
    except OverflowError:
        raise ProtocolError("a number is too large") from None


def this_process() -> tuple[str, int, str]:
    """(host, pid, start) of this process."""
    return socket.gethostname(), os.getpid(), process_start(os.getpid()) or ""


def process_start(pid: int) -> str | None:
    """Boot id and start time of a process on this host; None where there is none."""
    with suppress(OSError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else f"{boot}:{fields[19].decode()}"
    return None


def is_alive(writer: WriterStarted) -> bool:
    """True where the writer runs on this host; one on another host cannot be seen and counts as ended."""
    return writer.host == socket.gethostname() and process_start(writer.pid) == writer.pid_started
