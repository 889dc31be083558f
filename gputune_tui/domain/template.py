"""A command as workload: `{knob}` in it stands for the trial's value, or for the words that `--flag` gives it."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from gputune_tui.domain.knobs import KNOB_BY_NAME, KnobValue, knob_named, read_value, value_text
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.errors import UsageError

SCRATCH = "scratch"
"""`{scratch}` is a folder of the trial's own, for what the command writes."""


def fill_placeholders(
    workload: WorkloadRef, settings: TrainSettings, global_batch_size: int | None, scratch: str | None = None
) -> list[str]:
    """The command with `{knob}` replaced by the values of a trial; other braces stay as they are.

    A knob with `--flag` is replaced by its words: as many as there are where it is a word of its own, and at the end
    of the command where it stands nowhere.
    """
    flags = {name: words[_text(settings, name)] for name, words in workload.flags.items()}
    values = {name: _text(settings, name) for name in KNOB_BY_NAME} | flags
    if global_batch_size is not None:
        values["global_batch_size"] = str(global_batch_size)
    if scratch is not None:
        values[SCRATCH] = scratch
    named = re.compile("{(" + "|".join(values) + ")}")
    filled: list[str] = []
    for word in workload.command:
        if word[1:-1] in flags and word == f"{{{word[1:-1]}}}":
            filled += shlex.split(flags[word[1:-1]])
        else:
            # In one pass, so that braces inside a value stay what they are.
            filled.append(named.sub(lambda match: values[match[1]], word))
    for name in flags.keys() - placeholders(workload.command, flags):
        filled += shlex.split(flags[name])
    return filled


def _text(settings: TrainSettings, name: str) -> str:
    value: KnobValue = getattr(settings, name)
    return value_text(value)


def placeholders(command: Sequence[str], names: Iterable[str]) -> set[str]:
    """Which of `names` appear as `{name}` in the command."""
    return {name for name in names if any("{" + name + "}" in word for word in command)}


def told_knobs(workload: WorkloadRef) -> set[str]:
    """The knobs that a command is told, by a placeholder or by `--flag`."""
    return placeholders(workload.command, KNOB_BY_NAME) | set(workload.flags)


def read_flags(texts: Sequence[str]) -> dict[str, Mapping[str, str]]:
    """Read `KNOB:VALUE=WORDS,VALUE=WORDS`, one text a knob.

    Raises:
        UsageError: not of that form, an unknown knob or value, or a knob named twice.
    """
    flags: dict[str, Mapping[str, str]] = {}
    for text in texts:
        name, colon, rest = text.partition(":")
        if not colon or not rest:
            raise UsageError(f"--flag {text} is not of the form KNOB:VALUE=WORDS,VALUE=WORDS")
        knob_named(name)
        if name in flags:
            raise UsageError(f"--flag {name} is given twice")
        flags[name] = dict(_one_flag(name, part) for part in rest.split(","))
    return flags


def _one_flag(name: str, part: str) -> tuple[str, str]:
    value, equals, words = part.partition("=")
    if not equals:
        raise UsageError(f"--flag {name}: {part!r} is not of the form VALUE=WORDS")
    try:
        shlex.split(words)
    except ValueError as error:
        raise UsageError(f"--flag {name}: {words!r} cannot be split into words ({error})") from None
    return value_text(read_value(name, value)), words


def check_flags(workload: WorkloadRef, settings: TrainSettings) -> None:
    """Refuse a value for which `--flag` has no words.

    Raises:
        UsageError: it has none.
    """
    for name, words in workload.flags.items():
        if (text := _text(settings, name)) not in words:
            raise UsageError(
                f"--flag {name} does not say what stands for {name}={text}; add {text}=WORDS (nothing after = for none)"
            )


def hash_command(command: Sequence[str]) -> str:
    """SHA-256 over the command's words and the contents of those that name files here."""
    digest = hashlib.sha256()
    for word in command:
        digest.update(word.encode("utf-8", "surrogateescape") + b"\0")
        if _names_file(word):
            digest.update(Path(word).read_bytes())
    return digest.hexdigest()


def files_named(command: Sequence[str]) -> list[str]:
    """The words of a command that name files here."""
    return [word for word in command if _names_file(word)]


def _names_file(word: str) -> bool:
    path = Path(word)
    return bool(path.suffix) and path.is_file()
