"""Writing a study: layout, two writers at once, a deleted directory, and `kill -9`."""

from __future__ import annotations

import errno
import math
import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gputune_tui.domain.trial import GuardRecord, TrialState
from gputune_tui.errors import StoreWriteError
from gputune_tui.store.reading import read_study
from gputune_tui.store.records import TrialEnded, WriterStarted
from gputune_tui.store.writing import StudyWriter
from tests.store.samples import began, complete, ended, opened, run_program, trial_ids, wait_until


def test_nothing_is_created_before_the_first_record(tmp_path: Path) -> None:
    study = tmp_path / "deep" / "study"
    writer = StudyWriter(study)
    assert not (tmp_path / "deep").exists()
    writer.append(opened())
    assert [entry.name for entry in study.iterdir()] == [writer.path.name]
    assert writer.path.match("journal-*.jsonl")
    assert isinstance(read_study(study).records[0], WriterStarted)


def test_each_record_can_be_read_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path)
    writer.append(opened())
    for trial_id in range(1, 6):
        writer.append(began(trial_id))
        writer.append(ended(trial_id))
        assert trial_ids(read_study(tmp_path)) == list(range(1, trial_id + 1))


def test_a_loss_that_is_not_finite_is_stored(tmp_path: Path) -> None:
    trial = complete(1)
    launch = replace(trial.launches[0], guard=GuardRecord(losses=(math.nan, math.inf), gradient_norms=(-math.inf,)))
    writer = StudyWriter(tmp_path)
    writer.append(opened())
    writer.append(TrialEnded(1, replace(trial, launches=(launch,))))
    writer.append(ended(2))
    current = read_study(tmp_path).current
    assert current is not None
    guard = current.trials[0].launches[0].guard
    assert guard is not None
    assert math.isnan(guard.losses[0])
    assert guard.losses[1:] == (math.inf,)
    assert guard.gradient_norms == (-math.inf,)


def test_a_study_goes_on_with_a_journal_of_the_next_writer(tmp_path: Path) -> None:
    for trial_id in (1, 2, 3):
        writer = StudyWriter(tmp_path, read_study(tmp_path).records)
        writer.append(opened())
        writer.append(ended(trial_id))
        writer.close()
    contents = read_study(tmp_path)
    assert trial_ids(contents) == [1, 2, 3]
    assert len(contents.generations) == 1
    assert len(list(tmp_path.glob("journal-*"))) == 3


def test_a_closed_writer_opens_again_and_loses_nothing(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path)
    writer.append(opened())
    writer.append(ended(1))
    writer.close()
    writer.append(ended(2))
    writer.close()
    assert trial_ids(read_study(tmp_path)) == [1, 2]


def test_trial_ids_are_claimed_once(tmp_path: Path) -> None:
    one, two = StudyWriter(tmp_path), StudyWriter(tmp_path)
    claimed = [one.claim_trial_id(1), two.claim_trial_id(1), one.claim_trial_id(1)]
    assert [trial_id for trial_id, _ in claimed] == [1, 2, 3]
    assert all(directory == tmp_path / "trials" / str(trial_id) for trial_id, directory in claimed)


def test_a_file_in_the_place_of_the_trials_is_said(tmp_path: Path) -> None:
    (tmp_path / "trials").write_text("")
    with pytest.raises(StoreWriteError, match="a file is in the way"):
        StudyWriter(tmp_path).claim_trial_id(1)


WRITE_TRIALS = """
    study, count = Path(sys.argv[1]), int(sys.argv[2])
    writer = StudyWriter(study)
    writer.append(opened())
    sys.stdin.readline()
    for n in range(count):
        trial_id, _ = writer.claim_trial_id(1)
        writer.append(began(trial_id))
        writer.append(ended(trial_id, 1 + n % 7))
"""


def test_two_processes_at_once_write_every_trial_under_an_id_of_its_own(tmp_path: Path) -> None:
    processes = [run_program(WRITE_TRIALS, str(tmp_path), "30") for _ in range(2)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    contents = read_study(tmp_path)
    assert contents.problems == ()
    assert trial_ids(contents) == list(range(1, 61))
    assert contents.current is not None
    assert all(trial.state is TrialState.COMPLETE for trial in contents.current.trials)


def test_twenty_writers_started_at_once_do_not_mix_lines(tmp_path: Path) -> None:
    code = """
        for n in range(20):
            if os.fork() == 0:
                writer = StudyWriter(Path(sys.argv[1]))
                writer.append(opened())
                trial_id, _ = writer.claim_trial_id(1)
                writer.append(ended(trial_id))
                os._exit(0)
        for n in range(20):
            assert os.wait()[1] == 0
    """
    process = run_program(code, str(tmp_path))
    process.communicate(timeout=60)
    assert process.returncode == 0
    contents = read_study(tmp_path)
    assert contents.problems == ()
    assert trial_ids(contents) == list(range(1, 21))


KILL_ME = """
    writer = StudyWriter(Path(sys.argv[1]))
    writer.append(opened())
    n = int(sys.argv[2])
    while True:
        writer.append(began(n))
        writer.append(ended(n))
        print(n)
        n += 1
"""


def test_a_study_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    chance = random.Random(0)
    expected = 0
    for _ in range(6):
        process = run_program(KILL_ME, str(tmp_path), str(expected + 1))
        assert process.stdout is not None
        assert process.stdout.readline()
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        told = process.communicate()[0].split()
        contents = read_study(tmp_path)
        assert contents.current is not None
        finished = [trial.id for trial in contents.current.trials if trial.state is TrialState.COMPLETE]
        last_told = int(told[-1]) if told else expected + 1
        assert set(range(expected + 1, last_told + 1)) <= set(finished), "a trial that was on disk is lost"
        assert not any(trial.state is TrialState.RUNNING for trial in contents.current.trials)
        expected = max(trial_ids(contents))


def test_a_deleted_study_comes_back_with_all_that_is_known(tmp_path: Path) -> None:
    study = tmp_path / "study"
    first = StudyWriter(study)
    for record in (opened(), ended(1), ended(2)):
        first.append(record)
    first.close()
    writer = StudyWriter(study, read_study(study).records)
    writer.append(opened())
    writer.append(ended(3))
    shutil.rmtree(study)
    writer.append(ended(4))
    assert trial_ids(read_study(study)) == [1, 2, 3, 4]
    shutil.rmtree(study)
    writer.append(ended(5))
    assert trial_ids(read_study(study)) == [1, 2, 3, 4, 5]
    assert read_study(study).problems == ()


def test_a_study_deleted_after_it_was_read_comes_back_with_the_first_record(tmp_path: Path) -> None:
    study = tmp_path / "study"
    first = StudyWriter(study)
    first.append(opened())
    first.append(ended(1))
    first.close()
    writer = StudyWriter(study, read_study(study).records)
    shutil.rmtree(study)
    writer.append(opened())
    writer.append(ended(2))
    assert trial_ids(read_study(study)) == [1, 2]


def test_a_deleted_journal_in_a_directory_that_stays_comes_back(tmp_path: Path) -> None:
    writer = StudyWriter(tmp_path)
    writer.append(opened())
    writer.append(ended(1))
    writer.path.unlink()
    writer.append(ended(2))
    assert trial_ids(read_study(tmp_path)) == [1, 2]


def test_a_study_deleted_again_and_again_while_it_is_written_loses_nothing(tmp_path: Path) -> None:
    study = tmp_path / "study"
    process = run_program(KILL_ME, str(study), "1")
    assert process.stdout is not None
    for _ in range(40):
        process.stdout.readline()
        shutil.rmtree(study, ignore_errors=True)
    told = [int(process.stdout.readline()) for _ in range(40)][-1]
    wait_until(lambda: told in trial_ids(read_study(study)))
    process.kill()
    process.communicate()
    contents = read_study(study)
    assert trial_ids(contents)[:told] == list(range(1, told + 1))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.ESTALE])
def test_a_deletion_in_the_middle_of_a_write_is_taken_in_stride(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """An NFS client may learn of a deletion only when it writes."""
    study = tmp_path / "study"
    writer = StudyWriter(study)
    writer.append(opened())
    writer.append(ended(1))
    real_write, faults = os.write, [number, number]

    def write(fd: int, data: bytes) -> int:
        if faults:
            shutil.rmtree(study)
            raise OSError(faults.pop(), "gone")
        return real_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    writer.append(ended(2))
    assert trial_ids(read_study(study)) == [1, 2]


def test_what_cannot_come_back_yet_is_known_still(tmp_path: Path) -> None:
    """Deleted, and then no way to make the directory: nothing may be forgotten over the failed attempts."""
    study = tmp_path / "study"
    writer = StudyWriter(study)
    writer.append(opened())
    writer.append(ended(1))
    shutil.rmtree(study)
    study.write_text("in the way")
    for trial_id in (2, 3):
        with pytest.raises(StoreWriteError):
            writer.append(ended(trial_id))
    assert writer.unsaved == 2
    study.unlink()
    writer.append(ended(4))
    assert writer.unsaved == 0
    assert trial_ids(read_study(study)) == [1, 2, 3, 4]
