"""The versioned JSON-lines events between a trial and its parent, and the orders of a paced trial."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, get_args

from gputune_tui.domain.data_reads import DataReads
from gputune_tui.domain.plain import from_plain, to_plain
from gputune_tui.domain.script import ScriptFacts
from gputune_tui.domain.trial import Block, FailureReason, GuardRecord, MemoryPeaks, StepBreakdown
from gputune_tui.errors import ProtocolError

VERSION = 1
MAX_LINE_BYTES = 1 << 20
"""A longer line is not ours."""


@dataclass(frozen=True)
class Hello:
    """First event: the process runs and torch is imported."""

    event: ClassVar[str] = "hello"
    pid: int
    python: str
    torch: str | None = None


@dataclass(frozen=True)
class Inspected:
    """Answer to an "inspect" job."""

    event: ClassVar[str] = "inspected"
    python: str
    torch: str
    cuda: str | None
    device_name: str | None
    device_uuid: str | None
    content_hash: str
    class_name: str
    global_batch_size: int | None
    """The workload's own default."""


@dataclass(frozen=True)
class Detected:
    """Answer to a "detect" job."""

    event: ClassVar[str] = "detected"
    facts: ScriptFacts


AFTER_MEASURING = ("finish", "noise")
"""Phases in which a trial has all that counts and takes memory of its own, which no training does."""


@dataclass(frozen=True)
class Phase:
    """The trial enters a phase: import, build, warm_up, largest_batch, evaluation, measure, ready (paced, waiting),
    breakdown, and those of `AFTER_MEASURING`."""

    event: ClassVar[str] = "phase"
    name: str
    detail: str = ""


@dataclass(frozen=True)
class Warmup:
    """The warm-up is over."""

    event: ClassVar[str] = "warmup"
    steps: int
    elapsed_s: float
    settled: bool
    """False where the limit came before step times agreed."""
    others_cpu_fraction: float | None = None
    """Of the trial's CPUs, what processes that are not its own used from its start until now."""
    idle_cpu_fraction: float | None = None


@dataclass(frozen=True)
class BlockDone:
    """One timed block."""

    event: ClassVar[str] = "block"
    block: Block
    step_times_s: tuple[float, ...]
    planned: int
    """How many blocks the plan holds; 0 when paced."""


@dataclass(frozen=True)
class Memory:
    """Peaks so far; sent again whenever one grew, so that a trial that dies leaves its lower bound."""

    event: ClassVar[str] = "memory"
    peaks: MemoryPeaks
    fixed_overhead_bytes: int | None = None
    resident_mark_bytes: int | None = None
    """Resident memory of the trial's process at which its device figure is the budget (CPU); whoever watches it from
    outside ends it well above."""


@dataclass(frozen=True)
class Guard:
    """The record of the training step itself."""

    event: ClassVar[str] = "guard"
    record: GuardRecord


@dataclass(frozen=True)
class Denormals:
    """How many values of one training step were subnormal."""

    event: ClassVar[str] = "denormals"
    fraction: float | None
    """Of the values that were looked at."""


@dataclass(frozen=True)
class DataRead:
    """Where the samples of the timed blocks came from."""

    event: ClassVar[str] = "data"
    record: DataReads


@dataclass(frozen=True)
class Note:
    """A remark for the row, in words."""

    event: ClassVar[str] = "note"
    text: str


@dataclass(frozen=True)
class Done:
    """Last event of a trial that did all it was asked."""

    event: ClassVar[str] = "done"
    breakdown: StepBreakdown | None = None


@dataclass(frozen=True)
class Error:
    """Last event of a trial that could not go on."""

    event: ClassVar[str] = "error"
    reason: FailureReason
    message: str
    """One sentence; the user's exception with file and line where it is theirs."""
    in_workload: bool = False


@dataclass(frozen=True)
class Stopped:
    """Answer to SIGTERM: what the trial was doing."""

    event: ClassVar[str] = "stopped"
    activity: str
    """A phase, or a phase of the step: data_wait, forward, ..."""
    where: str = ""
    """file:line of the user's code that was running, if any."""


Event = (
    Hello
    | Inspected
    | Detected
    | Phase
    | Warmup
    | BlockDone
    | Memory
    | Guard
    | Denormals
    | DataRead
    | Note
    | Done
    | Error
    | Stopped
)
_EVENTS: dict[str, type[Event]] = {cls.event: cls for cls in get_args(Event)}


def encode(event: Event) -> bytes:
    """One line, newline included."""
    line = {"v": VERSION, "event": event.event, **to_plain(event)}
    return json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Event:
    """Read one line.

    Raises:
        ProtocolError: not JSON, of another version, an unknown event, or a wrong field.
    """
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"a line of {len(line)} bytes is not an event")
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        raise ProtocolError("not JSON") from None
    if not isinstance(data, dict) or data.get("v") != VERSION:
        raise ProtocolError(f"not an event of protocol version {VERSION}")
    cls = _EVENTS.get(str(data.get("event")))
    if cls is None:
        raise ProtocolError(f"unknown event {data.get('event')!r}")
    return from_plain(cls, {key: value for key, value in data.items() if key not in ("v", "event")})


@dataclass(frozen=True)
class RunBlock:
    """Order to a paced trial: use up what the loader has ready, then time one block."""

    order: ClassVar[str] = "block"


@dataclass(frozen=True)
class Finish:
    """Order to a paced trial: measure the breakdown and end."""

    order: ClassVar[str] = "finish"


Order = RunBlock | Finish


def encode_order(order: Order) -> bytes:
    """One line, newline included."""
    return json.dumps({"v": VERSION, "order": order.order}).encode() + b"\n"


def decode_order(line: bytes) -> Order:
    """Read one order.

    Raises:
        ProtocolError: not an order of this version.
    """
    try:
        data = json.loads(line)
    except ValueError:
        raise ProtocolError("not JSON") from None
    for cls in (RunBlock, Finish):
        if isinstance(data, dict) and data.get("v") == VERSION and data.get("order") == cls.order:
            return cls()
    raise ProtocolError(f"unknown order {line[:80]!r}")
