"""Study: trials of one workload on one machine, and the memory budget they are held to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gputune_tui.domain.environment import Environment
from gputune_tui.domain.script import ScriptFacts
from gputune_tui.errors import UsageError


@dataclass(frozen=True)
class WorkloadRef:
    """Which workload, as a user names it."""

    name: str
    """Built-in name, `path/to/file.py[:Class]`, `package.module:Class`, or the command joined to one line."""
    options: Mapping[str, str] = field(default_factory=dict)
    """`-D key=value`, as text."""
    command: tuple[str, ...] = ()
    """A command as workload (everything after `--`), placeholders included; empty for a class."""
    samples_per_step: int | None = None
    """Commands only: samples of one optimizer step, when it is not the global batch."""
    flags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Commands only, as `--flag`: knob -> value as text -> the words that stand for it."""


def split_name(name: str) -> tuple[str, str | None]:
    """`path.py:Class` and `package.module:Class` in two; a colon inside a path stays in it."""
    target, colon, class_name = name.rpartition(":")
    return (target, class_name) if colon and class_name.isidentifier() else (name, None)


def names_file(target: str) -> bool:
    """True where a workload's name, without its class, means a file rather than a built-in or a module."""
    return target.endswith(".py") or "/" in target


def read_workload_options(pairs: Sequence[str]) -> dict[str, str]:
    """`-D key=value` pairs as a mapping.

    Raises:
        UsageError: a pair without `=`, or a key given twice.
    """
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"-D {pair} is not of the form key=value")
        if key in options:
            raise UsageError(f"-D {key} is given twice")
        options[key] = value
    return options


@dataclass(frozen=True)
class MemoryBudget:
    """The most that a trial may take."""

    device_bytes: int
    """Held against `device_peak_bytes`."""
    host_bytes: int | None = None
    """Held against `host_peak_bytes`; None is unlimited."""
    source: str = ""
    """Where the figure comes from, in words: "--budget 4GiB", "90 % of what is free on the device"."""
    host_source: str = ""
    """Where the host's figure comes from."""
    host_is_default: bool = False
    """Nobody asked for the host's figure: a trial whose host peak is unknown is not held to it."""


@dataclass(frozen=True)
class StudyIdentity:
    """What makes results comparable; another identity starts a new generation. The budget is no part of it."""

    workload: WorkloadRef
    content_hash: str
    """SHA-256 of the workload's source files."""
    global_batch_size: int
    environment: Environment
    cold: bool = False
    """Measured with the page cache dropped before each timed block."""
    script: ScriptFacts | None = field(default=None, compare=False)
    """What a command does by itself; None where it was not looked at, or the workload is a class. It follows from the
    rest."""
