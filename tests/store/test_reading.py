"""Reading a study: merging, liveness, damage, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from gputune_tui.domain.trial import FailureReason, TrialState
from gputune_tui.errors import StudyError
from gputune_tui.store.reading import identity_changes, read_existing_study, read_study, same_identity
from gputune_tui.store.records import OverheadMeasured, Record, TrialEnded, WriterStarted, encode_record
from tests.store.samples import (
    ENVIRONMENT,
    IDENTITY,
    began,
    complete,
    dead_writer,
    ended,
    live_writer,
    opened,
    other_identity,
    run_program,
    wait_until,
)


def write_journal(study: Path, records: Iterable[Record], name: str = "a", tail: bytes = b"") -> Path:
    study.mkdir(parents=True, exist_ok=True)
    journal = study / f"journal-{name}.jsonl"
    journal.write_bytes(b"".join(map(encode_record, records)) + tail)
    return journal


def test_a_study_that_is_not_there_yet_is_empty_and_an_empty_directory_too(tmp_path: Path) -> None:
    assert read_study(tmp_path / "new").current is None
    assert read_study(tmp_path).current is None
    assert not (tmp_path / "new").exists()


def test_showing_a_study_that_is_not_there_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="does not exist"):
        read_existing_study(tmp_path / "new")
    with pytest.raises(StudyError, match="holds no trials"):
        read_existing_study(tmp_path)


def test_trials_overhead_and_next_id(tmp_path: Path) -> None:
    write_journal(tmp_path, [dead_writer(), opened(), began(1), OverheadMeasured(1, 77), ended(1), began(2, 8)])
    contents = read_study(tmp_path)
    assert contents.current is not None
    assert contents.current.fixed_overhead_bytes == 77
    assert [trial.id for trial in contents.current.trials] == [1, 2]
    assert contents.current.trials[0] == complete(1)
    assert contents.next_trial_id == 3
    assert contents.problems == ()


def test_an_unfinished_trial_runs_while_its_writer_lives(tmp_path: Path) -> None:
    write_journal(tmp_path, [live_writer(), opened(), began(1)])
    current = read_study(tmp_path).current
    assert current is not None
    assert current.trials[0].state is TrialState.RUNNING


@pytest.mark.parametrize(
    "writer",
    [
        dead_writer(),
        replace(live_writer(), pid_started="another boot:1"),
        replace(live_writer(), host="another host"),
        replace(live_writer(), pid=1),
    ],
    ids=["no such process", "pid used again", "another host", "another process"],
)
def test_an_unfinished_trial_of_a_gone_writer_was_interrupted(tmp_path: Path, writer: WriterStarted) -> None:
    write_journal(tmp_path, [writer, opened(), began(1)])
    current = read_study(tmp_path).current
    assert current is not None
    failure = current.trials[0].failure
    assert failure is not None
    assert failure.reason is FailureReason.STALE
    assert "interrupted" in failure.message


def test_a_writer_of_another_process_is_named_until_it_ends(tmp_path: Path) -> None:
    code = "w = StudyWriter(Path(sys.argv[1])); w.append(opened()); w.append(began(1)); print('up'); sys.stdin.read()"
    process = run_program(code, str(tmp_path))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    contents = read_study(tmp_path)
    assert [writer.pid for writer in contents.other_writers] == [process.pid]
    assert contents.current is not None
    assert contents.current.trials[0].state is TrialState.RUNNING
    process.communicate()
    contents = read_study(tmp_path)
    assert contents.other_writers == ()
    assert contents.current is not None
    assert contents.current.trials[0].state is TrialState.FAIL


def test_a_killed_writer_that_its_parent_has_not_reaped_is_gone(tmp_path: Path) -> None:
    code = "w = StudyWriter(Path(sys.argv[1])); w.append(opened()); w.append(began(1)); print('up'); sys.stdin.read()"
    process = run_program(code, str(tmp_path))
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.kill()
    wait_until(lambda: read_study(tmp_path).other_writers == ())
    assert Path(f"/proc/{process.pid}").exists(), "it is still to be reaped"
    process.communicate()


def test_a_later_end_of_the_same_trial_takes_the_place_of_the_former(tmp_path: Path) -> None:
    first, second = complete(1, elapsed_s=0.5), complete(1, elapsed_s=0.25)
    write_journal(tmp_path, [dead_writer(2.0), opened(), TrialEnded(1, second)], "a")
    write_journal(tmp_path, [dead_writer(1.0), opened(), began(1), TrialEnded(1, first)], "b")
    current = read_study(tmp_path).current
    assert current is not None
    assert current.trials == (second,)


def test_equal_identities_of_two_writers_are_one_generation_whatever_its_number(tmp_path: Path) -> None:
    write_journal(tmp_path, [dead_writer(1.0), opened(IDENTITY, 1, 1.0), ended(1)], "a")
    other: list[Record] = [dead_writer(2.0), opened(other_identity(), 1, 2.0), ended(2), opened(IDENTITY, 2, 3.0)]
    write_journal(tmp_path, [*other, TrialEnded(2, complete(3, 8))], "b")
    contents = read_study(tmp_path)
    assert [(g.number, [t.id for t in g.trials]) for g in contents.generations] == [(2, [2]), (1, [1, 3])]
    assert contents.current is not None
    assert contents.current.identity == IDENTITY
    assert contents.generation_of(other_identity()) == contents.generations[0]
    assert contents.generation_of(other_identity("third")) is None


def test_a_generation_keeps_its_number_when_it_is_opened_again(tmp_path: Path) -> None:
    write_journal(tmp_path, [dead_writer(1.0), opened(IDENTITY, 1, 1.0), opened(other_identity(), 2, 2.0)], "a")
    before = read_study(tmp_path).generation_of(IDENTITY)
    write_journal(tmp_path, [dead_writer(3.0), opened(IDENTITY, 1, 3.0)], "b")
    contents = read_study(tmp_path)
    assert contents.current is not None
    assert before is not None
    assert contents.current.number == before.number == 1


def test_two_trials_with_one_id_are_both_kept(tmp_path: Path) -> None:
    later = replace(complete(1, 8), started_at=50.0)
    write_journal(tmp_path, [dead_writer(1.0), opened(), ended(1), ended(2)], "a")
    write_journal(tmp_path, [dead_writer(2.0), opened(), TrialEnded(1, later)], "b")
    contents = read_study(tmp_path)
    assert contents.current is not None
    assert contents.current.trials == (complete(1), complete(2), replace(later, id=3))
    assert "trial id 1" in contents.problems[0]


@pytest.mark.parametrize(("whole", "part"), [("a", "b"), ("b", "a")])
def test_sections_written_anew_count_once_and_keep_their_writer(tmp_path: Path, whole: str, part: str) -> None:
    gone: list[Record] = [dead_writer(1.0), opened(), began(1), ended(1), began(2)]
    write_journal(tmp_path, gone, whole)
    write_journal(tmp_path, [*gone[:3], live_writer(2.0), opened(), began(3)], part)
    contents = read_study(tmp_path)
    assert contents.current is not None
    states = {trial.id: trial.state for trial in contents.current.trials}
    assert states == {1: TrialState.COMPLETE, 2: TrialState.FAIL, 3: TrialState.RUNNING}
    assert len(contents.records) == len(gone) + 3


@pytest.mark.parametrize(
    "damage", [b'{"schema":1,"rec', b"\x00" * 300, b"\xff\xfe{}", b"[]\n", b"\x00\x00\n\x00\n", b'{"schema":1}x\n']
)
def test_a_damaged_end_is_reported_and_left_as_it_is(tmp_path: Path, damage: bytes) -> None:
    journal = write_journal(tmp_path, [dead_writer(), opened(), ended(1)], tail=damage)
    before = journal.read_bytes()
    contents = read_study(tmp_path)
    assert contents.current is not None
    assert contents.current.trials == (complete(1),)
    assert f"{journal.name}:4 was skipped" in contents.problems[0]
    assert journal.read_bytes() == before


def test_an_end_that_is_being_written_is_no_problem(tmp_path: Path) -> None:
    write_journal(tmp_path, [live_writer(), opened()], tail=b'{"schema":1,')
    assert read_study(tmp_path).problems == ()


@pytest.mark.parametrize("damage", [b'{"schema":1,"record":"en\n', b"\x00\n", b"\xff\n", b"\n", b"[" * 100_000 + b"\n"])
def test_a_damaged_line_before_good_ones_names_file_and_line(tmp_path: Path, damage: bytes) -> None:
    journal = write_journal(tmp_path, [dead_writer(), opened()], tail=damage + encode_record(ended(1)))
    before = journal.read_bytes()
    with pytest.raises(StudyError) as refusal:
        read_study(tmp_path)
    assert f"{journal}:3 is damaged" in str(refusal.value)
    assert "nothing was changed" in str(refusal.value)
    assert journal.read_bytes() == before


def test_a_value_of_the_wrong_type_is_damage_and_named(tmp_path: Path) -> None:
    line = encode_record(ended(1)).replace(b'"micro_batch_size":4', b'"micro_batch_size":"four"')
    write_journal(tmp_path, [dead_writer(), opened()], tail=line + encode_record(ended(2)))
    with pytest.raises(StudyError, match="micro_batch_size"):
        read_study(tmp_path)


def test_a_number_beyond_any_float_is_damage(tmp_path: Path) -> None:
    line = encode_record(ended(1)).replace(b'"started_at":1.0', b'"started_at":1' + b"0" * 400)
    write_journal(tmp_path, [dead_writer(), opened()], tail=line + encode_record(ended(2)))
    with pytest.raises(StudyError, match="too large"):
        read_study(tmp_path)


@pytest.mark.parametrize(
    "foreign", [{"schema": 2, "record": "ended"}, {"schema": 1, "record": "spun"}, {"schema": "x"}]
)
def test_a_line_of_another_version_is_skipped_and_reported(tmp_path: Path, foreign: dict[str, object]) -> None:
    line = json.dumps(foreign).encode() + b"\n"
    journal = write_journal(tmp_path, [dead_writer(), opened()], tail=line + encode_record(ended(1)))
    contents = read_study(tmp_path)
    assert contents.current is not None
    assert contents.current.trials == (complete(1),)
    assert contents.problems[0].startswith(f"{journal.name}:3 was skipped")


def test_a_line_cut_in_half_before_a_line_of_another_version_is_skipped(tmp_path: Path) -> None:
    half = encode_record(ended(2))[:40] + b'\n{"schema":99,"record":"ended"}\n'
    write_journal(tmp_path, [dead_writer(), opened(), ended(1)], tail=half)
    contents = read_study(tmp_path)
    assert contents.current is not None
    assert contents.current.trials == (complete(1),)
    assert len(contents.problems) == 2


def test_records_whose_generation_was_skipped_are_reported(tmp_path: Path) -> None:
    foreign = b'{"schema":2,"record":"generation"}\n'
    write_journal(tmp_path, [dead_writer()], tail=foreign + encode_record(ended(1)))
    contents = read_study(tmp_path)
    assert contents.generations == ()
    assert "1 records were skipped" in contents.problems[1]


def test_a_directory_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(StudyError, match="is not a study"):
        read_study(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_nfs_keeps_of_a_deleted_study_does_not_make_it_something_else(tmp_path: Path) -> None:
    (tmp_path / ".nfs000000000000abcd").write_text("")
    (tmp_path / "trials").mkdir()
    assert read_study(tmp_path).current is None


def test_a_file_is_no_study(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="is a file"):
        read_study(tmp_path / "file")
    with pytest.raises(StudyError, match="is a file"):
        read_study(tmp_path / "file" / "below")


def test_a_journal_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal-x.jsonl").mkdir()
    with pytest.raises(StudyError, match="cannot read"):
        read_study(tmp_path)


@pytest.mark.parametrize("what", ["directory", "journal"])
def test_what_may_not_be_read_is_said(tmp_path: Path, what: str) -> None:
    journal = write_journal(tmp_path / "s", [dead_writer(), opened()])
    closed = journal if what == "journal" else journal.parent
    closed.chmod(0)
    try:
        if os.access(closed, os.R_OK):
            pytest.skip("this user may read everything")
        with pytest.raises(StudyError, match="Permission denied"):
            read_study(tmp_path / "s")
    finally:
        closed.chmod(0o700)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"host": "node2"}, "host"),
        ({"device_uuid": "GPU-1"}, "device uuid"),
        ({"driver": "580"}, "driver"),
        ({"torch": "2.15"}, "torch"),
        ({"python": "3.13"}, "python"),
        ({"effective_cpus": 4.0}, "effective cpus"),
        ({"shm_bytes": 1}, "shm"),
    ],
)
def test_another_machine_or_torch_is_another_identity_and_said(change: dict[str, object], word: str) -> None:
    other = replace(IDENTITY, environment=replace(ENVIRONMENT, **change))  # type: ignore[arg-type]
    assert not same_identity(IDENTITY, other)
    assert word in identity_changes(IDENTITY, other)[0]


def test_source_and_global_batch_are_part_of_the_identity_and_total_memory_is_not() -> None:
    assert identity_changes(IDENTITY, other_identity()) == ["the workload's source"]
    assert not same_identity(IDENTITY, replace(IDENTITY, global_batch_size=32))
    assert identity_changes(IDENTITY, replace(IDENTITY, global_batch_size=32)) == ["the global batch (16 -> 32)"]
    assert same_identity(IDENTITY, replace(IDENTITY, environment=replace(ENVIRONMENT, host_memory_bytes=1)))
