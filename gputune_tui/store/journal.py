"""One journal file, read: whole good lines, what was skipped, and whose lines they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gputune_tui.errors import ProtocolError, StudyError
from gputune_tui.store.records import ForeignRecord, Record, WriterStarted, decode_record, is_alive

JOURNAL_PATTERN = "journal-*.jsonl"


@dataclass(frozen=True)
class Section:
    """What one writer wrote. A journal holds its writer's section, after those it had to write anew."""

    writer: WriterStarted | None
    """None where the line that names the writer was skipped."""
    records: tuple[Record, ...]
    """In the order of writing, without the line that names the writer."""


def journals(path: Path) -> list[Path]:
    """The journals of a study, sorted by name; none where the directory is empty or not there yet.

    Raises:
        StudyError: not a directory, unreadable, or a directory of something else.
    """
    try:
        entries = sorted(path.iterdir())
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise StudyError(f"{path} is a file, not a study directory; choose another --study") from None
    except OSError as error:
        raise StudyError(f"cannot read study {path}: {error.strerror}; choose another --study") from error
    found = [entry for entry in entries if entry.match(JOURNAL_PATTERN)]
    # NFS keeps a deleted file that is still open under a name of this kind.
    others = [entry for entry in entries if entry.name != "trials" and not entry.name.startswith(".nfs")]
    if others and not found:
        raise StudyError(f"{path} holds files but is not a study; choose an empty or a new directory")
    return found


def read_journal(journal: Path) -> tuple[list[Record], list[str]]:
    """The records of one journal and, in words, what was skipped.

    Damaged lines at the end are the mark of a writer or a machine that was killed: they are skipped. A line of
    another version is skipped too. Nothing is ever written to the file.

    Raises:
        StudyError: it cannot be read, or a damaged line is followed by a good one.
    """
    try:
        data = journal.read_bytes()
    except FileNotFoundError:
        return [], []  # somebody deletes the study while it is read
    except OSError as error:
        raise StudyError(f"cannot read {journal}: {error.strerror}; nothing was changed") from error
    *lines, rest = data.split(b"\n")
    records: list[Record] = []
    problems: list[str] = []
    damaged: tuple[int, ProtocolError] | None = None
    for number, line in enumerate(lines, 1):
        try:
            record = decode_record(line)
        except ForeignRecord as foreign:
            problems.append(f"{journal.name}:{number} was skipped: {foreign}")
        except ProtocolError as damage:
            problems.append(f"{journal.name}:{number} was skipped: it is damaged ({damage})")
            damaged = damaged or (number, damage)
        else:
            if damaged is not None:
                raise StudyError(
                    f"{journal}:{damaged[0]} is damaged ({damaged[1]}); nothing was changed: mend or delete that "
                    "line, or choose another --study"
                )
            records.append(record)
    is_being_written = any(isinstance(record, WriterStarted) and is_alive(record) for record in records)
    if rest and not is_being_written:
        problems.append(f"{journal.name}:{len(lines) + 1} was skipped: it is cut off")
    return records, problems


def sections(journals_records: Iterable[Iterable[Record]]) -> list[Section]:
    """The sections of all journals, each writer once, in the order in which the writers started.

    Where a study was deleted and written anew, several journals hold the same section, cut at different points: the
    longest is all of it.
    """
    nameless: list[Section] = []
    longest: dict[WriterStarted, Section] = {}
    for records in journals_records:
        for section in _split(records):
            if section.writer is None:
                nameless.append(section)
            elif section.writer not in longest or len(longest[section.writer].records) < len(section.records):
                longest[section.writer] = section
    return nameless + [longest[writer] for writer in sorted(longest, key=_by_start)]


def _by_start(writer: WriterStarted) -> tuple[float, str, int]:
    return writer.time, writer.host, writer.pid


def _split(records: Iterable[Record]) -> list[Section]:
    parts: list[tuple[WriterStarted | None, list[Record]]] = [(None, [])]
    for record in records:
        if isinstance(record, WriterStarted):
            parts.append((record, []))
        else:
            parts[-1][1].append(record)
    return [Section(writer, tuple(own)) for writer, own in parts if writer is not None or own]
