"""Where studies lie and how they are listed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.errors import EnvironmentProblem, StudyError
from gputune_tui.store.places import default_study_path, list_studies, studies_root
from gputune_tui.store.records import Record, encode_record
from gputune_tui.store.writing import StudyWriter
from tests.store.samples import began, dead_writer, ended, opened, other_identity


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "gputune-tui" / "studies"


def test_the_place_follows_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert studies_root() == root
    monkeypatch.setenv("HOME", "/home/me")
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert studies_root() == Path("/home/me/.local/state/gputune-tui/studies")


def test_a_user_without_a_home_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(EnvironmentProblem, match="--study"):
        studies_root()


@pytest.mark.parametrize(
    ("workload", "device", "name"),
    [
        (WorkloadRef("lm"), "cpu", "lm-cpu"),
        (WorkloadRef("lm", {"size": "tiny"}), "cpu", "lm-size=tiny-cpu"),
        (WorkloadRef("loader-bound", {"b": "2", "a": "1"}), "cuda:1", "loader-bound-a=1-b=2-cuda1"),
    ],
)
def test_a_built_in_workload_has_a_plain_name(root: Path, workload: WorkloadRef, device: str, name: str) -> None:
    assert default_study_path(workload, device) == root / name


def test_files_of_one_name_in_two_folders_have_two_studies(tmp_path: Path) -> None:
    one = default_study_path(WorkloadRef(str(tmp_path / "a" / "train.py")), "cpu")
    two = default_study_path(WorkloadRef(str(tmp_path / "b" / "train.py")), "cpu")
    other_class = default_study_path(WorkloadRef(str(tmp_path / "b" / "train.py") + ":Net"), "cpu")
    assert len({one, two, other_class}) == 3
    assert one.name.startswith("train-cpu-")


def test_a_command_is_named_after_its_script() -> None:
    command = ("python", "train my.py", "--bs", "{micro_batch_size}")
    path = default_study_path(WorkloadRef(" ".join(command), command=command), "cpu")
    assert path.name.startswith("train_my-cpu-")
    longer = (*command, "--lr", "1")
    assert default_study_path(WorkloadRef(" ".join(longer), command=longer), "cpu") != path


@pytest.mark.parametrize(
    "name",
    ["模型/訓練.py", "../../etc/passwd.py", "a b\n\t.py", "m" * 400 + ".py", "模" * 400 + ".py", "\udcff.py", "...py"],
)
def test_any_name_makes_one_usable_directory_below_the_root(root: Path, name: str) -> None:
    path = default_study_path(WorkloadRef(name, {"data": "/some/where"}), "cpu")
    assert path.parent == root
    assert len(os.fsencode(path.name)) <= 255
    path.mkdir(parents=True)
    assert path == default_study_path(WorkloadRef(name, {"data": "/some/where"}), "cpu")


def test_unicode_stays_readable() -> None:
    assert default_study_path(WorkloadRef("模型/訓練.py"), "cpu").name.startswith("訓練-cpu-")


def test_names_that_differ_only_in_what_a_file_name_cannot_hold_stay_apart() -> None:
    one, two = (default_study_path(WorkloadRef("lm", {"data": d}), "cpu") for d in ("a/b", "a_b"))
    assert one != two


def test_no_place_is_no_studies(root: Path) -> None:
    assert list_studies(root) == []


def test_studies_are_listed_newest_first_and_damaged_ones_with_their_problem(root: Path) -> None:
    for place, (name, identity) in enumerate([("old", other_identity()), ("new", other_identity("x"))]):
        study = root / name
        study.mkdir(parents=True)
        journal = study / "journal-a.jsonl"
        records: list[Record] = [dead_writer(), opened(identity), ended(1), began(2)]
        journal.write_bytes(b"".join(map(encode_record, records)))
        os.utime(journal, (1000 + place, 1000 + place))
    damaged = root / "damaged"
    damaged.mkdir()
    (damaged / "journal-a.jsonl").write_bytes(b"no\n" + encode_record(opened()))
    os.utime(damaged / "journal-a.jsonl", (500, 500))
    (root / "empty").mkdir()
    (root / "a file").write_text("")
    new, old, bad, empty = list_studies(root)
    assert [s.path.name for s in (new, old, bad, empty)] == ["new", "old", "damaged", "empty"]
    assert new.workload == "lm -D size=tiny"
    assert new.states == {"COMPLETE": 1, "FAIL": 1}
    assert new.global_batch_size == 16
    assert new.changed_at == 1001
    assert not new.running
    assert bad.problem is not None
    assert "journal-a.jsonl:1" in bad.problem
    assert empty.problem is None
    assert empty.states == {}


def test_a_study_whose_trial_runs_is_said_to_run(root: Path) -> None:
    writer = StudyWriter(root / "s")
    writer.append(opened())
    writer.append(began(1))
    assert list_studies(root)[0].running
    writer.append(ended(1))
    assert not list_studies(root)[0].running


def test_a_root_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="cannot read"):
        list_studies(tmp_path / "file")
