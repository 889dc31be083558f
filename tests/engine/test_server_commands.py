"""The engine process at work: what it says to each request, in order, and what it survives."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gputune_tui.domain.trial import FailureReason, TrialState
from gputune_tui.engine.commands import Compare, RunTrial, Search, StudyConfig
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import (
    Compared,
    EngineEvent,
    Exported,
    Previewed,
    Problem,
    QueueChanged,
    SearchFinished,
    SearchPlanned,
    StudyOpened,
    StudyTrials,
    TaskEnded,
    TaskStarted,
    TrialFinished,
    TrialProgress,
    TrialStarted,
    decode_event,
)
from gputune_tui.engine.requests import Cancel, Do, Export, Open, Preview, Shutdown, encode_request
from gputune_tui.engine.server import Server

from .driving import Talk, is_running, of_kind, trial_processes, wait_until
from .fake_interpreter import fake_study


@pytest.fixture(scope="module")
def one_engine() -> Iterator[Talk]:
    """One process for all tests that leave it as it was."""
    talk = Talk()
    yield talk
    talk.client.close()


@pytest.fixture
def shared(one_engine: Talk, tmp_path: Path) -> Iterator[Talk]:
    """An engine that may have a study open; no trial of the test may be left."""
    yield one_engine
    one_engine.client.send(Cancel())
    one_engine.client.send(Export(None, "no such format", ""))
    one_engine.listen(lambda events: of_kind(events, Problem), "the answer to the last request")
    assert trial_processes(tmp_path) == []


def kinds(events: list[EngineEvent]) -> list[str]:
    """The classes of the events, without progress."""
    return [type(event).__name__ for event in events if not isinstance(event, TrialProgress)]


def hold(talk: Talk, folder: Path) -> Path:
    """Open a study and run a trial that stays in the middle until the returned file is deleted."""
    file = folder / "hold"
    file.touch()
    talk.client.send(Open(fake_study(folder, hold=file)))
    talk.client.send(Do(RunTrial({"precision": "bf16"})))
    talk.listen(lambda events: any(p.blocks == 1 for p in of_kind(events, TrialProgress)), "the first block")
    return file


def test_open_and_run(shared: Talk, tmp_path: Path) -> None:
    shared.client.send(Open(fake_study(tmp_path)))
    events = shared.until_ended("open")
    assert kinds(events) == ["TaskStarted", "StudyOpened", "StudyTrials", "TaskEnded"]
    listed = of_kind(events, StudyTrials)[0]
    assert listed.trials == ()
    assert listed.first
    assert listed.last
    assert listed.baseline.micro_batch_size == 8
    assert of_kind(events, TaskEnded) == [TaskEnded("open", None, 0)]
    shared.client.send(Do(RunTrial({"precision": "bf16"})))
    events = shared.until_ended("trial")
    assert kinds(events) == ["TaskStarted", "TrialStarted", "TrialFinished", "TaskEnded"]
    trial = of_kind(events, TrialFinished)[0].trial
    assert trial.state is TrialState.COMPLETE
    assert trial.settings.precision == "bf16"
    shared.client.send(Open(fake_study(tmp_path)))
    again = shared.until_ended("open")
    assert of_kind(again, StudyOpened)[0].finished_trials == 1
    assert of_kind(again, StudyTrials)[0].trials == (trial,)


def test_a_second_command_waits_for_its_turn(shared: Talk, tmp_path: Path) -> None:
    file = hold(shared, tmp_path)
    shared.client.send(Do(RunTrial({"precision": "fp32"})))
    shared.client.send(Do(Search("precision=fp32,bf16")))
    shared.listen(lambda events: QueueChanged(("trial", "search")) in events)
    file.unlink()
    events = shared.until_ended("search")
    titles = [e.title for e in events if isinstance(e, TaskStarted | TaskEnded)]
    assert titles == ["trial", "trial", "trial", "search", "search"]
    assert of_kind(events, QueueChanged) == [QueueChanged(("search",)), QueueChanged(())]
    assert of_kind(events, SearchPlanned)[0].already_finished == 2
    assert of_kind(events, SearchFinished) == [SearchFinished(None)]


def test_cancel_ends_the_trial_and_empties_the_queue(shared: Talk, tmp_path: Path) -> None:
    hold(shared, tmp_path)
    shared.client.send(Do(Search("precision=fp32,bf16")))
    shared.listen(lambda events: QueueChanged(("search",)) in events)
    shared.client.send(Cancel())
    events = shared.until_ended("search")
    trial = of_kind(events, TrialFinished)[0].trial
    assert trial.failure is not None
    assert trial.failure.reason is FailureReason.KILLED
    assert of_kind(events, TaskEnded) == [
        TaskEnded("trial", None, 130, cancelled=True),
        TaskEnded("search", None, 130, cancelled=True),
    ]
    journal = next((tmp_path / "study").glob("journal-*.jsonl")).read_text().splitlines()
    assert json.loads(journal[-1])["record"] == "ended"
    (tmp_path / "hold").unlink()
    shared.client.send(Do(RunTrial({"precision": "bf16"})))
    assert of_kind(shared.until_ended("trial"), TrialFinished)[0].trial.state is TrialState.COMPLETE


def test_cancel_ends_an_opening(shared: Talk, tmp_path: Path) -> None:
    file = tmp_path / "hold"
    file.touch()
    shared.client.send(Open(fake_study(tmp_path, hold_inspect=file)))
    shared.client.send(Do(RunTrial()))
    shared.listen(lambda events: any(p.phase == "import" for p in of_kind(events, TrialProgress)))
    shared.client.send(Cancel())
    events = shared.until_ended("trial")
    assert of_kind(events, TaskEnded) == [
        TaskEnded("open", None, 130, cancelled=True),
        TaskEnded("trial", None, 130, cancelled=True),
    ]
    assert of_kind(events, StudyOpened) == []
    assert not (tmp_path / "study").exists()


def test_a_bad_workload_is_one_sentence_and_the_engine_lives(talk: Talk, tmp_path: Path) -> None:
    talk.client.send(Do(RunTrial()))
    assert "no study is open" in str(of_kind(talk.until_ended("trial"), TaskEnded)[0].error)
    talk.client.send(Open(fake_study(tmp_path, fault="ImportError: no module named flax (wl.py:1)")))
    talk.client.send(Do(RunTrial()))
    ended = of_kind(talk.until_ended("trial"), TaskEnded)
    assert ended[0] == TaskEnded("open", "workload fake fails: ImportError: no module named flax (wl.py:1)", 4)
    assert ended[1].cancelled
    assert ended[1].error is not None
    talk.client.send(Open(fake_study(tmp_path)))
    talk.client.send(Do(RunTrial()))
    assert of_kind(talk.until_ended("trial"), TaskEnded)[-1] == TaskEnded("trial", None, 0)


def test_a_study_stays_open_where_another_cannot_be_opened(shared: Talk, tmp_path: Path) -> None:
    shared.client.send(Open(fake_study(tmp_path)))
    shared.client.send(Open(StudyConfig(fake_study(tmp_path).workload, device="tpu")))
    ended = of_kind(shared.until_ended("open", 2), TaskEnded)
    assert ended[1].exit_code == 2
    assert "not a device" in str(ended[1].error)
    shared.client.send(Do(RunTrial()))
    assert of_kind(shared.until_ended("trial"), TaskEnded) == [TaskEnded("trial", None, 0)]


def test_another_study_takes_the_place_of_the_first(shared: Talk, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shared.client.send(Open(fake_study(tmp_path, name)))
        shared.client.send(Do(RunTrial()))
        shared.until_ended("trial")
    journals = [p for name in ("one", "two") for p in (tmp_path / name).glob("journal-*.jsonl")]
    assert len(journals) == 2
    assert shared.client.pid is not None
    open_files = [
        os.readlink(f"/proc/{shared.client.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{shared.client.pid}/fd")
    ]
    assert str(journals[0]) not in open_files
    assert str(journals[1]) in open_files


def test_a_command_that_cannot_be_is_told_and_the_next_one_runs(shared: Talk, tmp_path: Path) -> None:
    shared.client.send(Open(fake_study(tmp_path)))
    shared.client.send(Do(RunTrial({"micro_batch_size": 3})))
    shared.client.send(Do(RunTrial()))
    ended = of_kind(shared.until_ended("trial", 2), TaskEnded)[1:]
    assert "contradicts the global batch" in str(ended[0].error)
    assert [e.exit_code for e in ended] == [2, 0]


@pytest.mark.slow
def test_a_comparison(shared: Talk, tmp_path: Path) -> None:
    shared.client.send(Open(fake_study(tmp_path)))
    shared.client.send(Do(Compare({"precision": "fp32"}, {"precision": "bf16"})))
    events = shared.until_ended("a/b")
    assert [started.arm for started in of_kind(events, TrialStarted)] == ["A", "B"]
    assert of_kind(events, Compared)[0].verdict == "tied"
    shared.client.send(Do(RunTrial()))
    shared.until_ended("trial")


def test_a_comparison_is_cancelled(shared: Talk, tmp_path: Path) -> None:
    file = tmp_path / "hold"
    file.touch()
    shared.client.send(Open(fake_study(tmp_path, hold=file)))
    shared.client.send(Do(Compare({"precision": "fp32"}, {"precision": "bf16"})))
    shared.listen(lambda events: any(p.blocks == 1 for p in of_kind(events, TrialProgress)))
    shared.client.send(Cancel())
    events = shared.until_ended("a/b")
    assert [e.trial.state for e in of_kind(events, TrialFinished)] == [TrialState.FAIL] * 2


def test_export_while_a_trial_runs_and_after(shared: Talk, tmp_path: Path) -> None:
    file, target = hold(shared, tmp_path), tmp_path / "out.yaml"
    shared.client.send(Export(None, "yaml", str(target)))
    assert "nothing to export" in of_kind(shared.listen(lambda e: of_kind(e, Problem)), Problem)[0].text
    file.unlink()
    shared.until_ended("trial")
    file.touch()
    shared.client.send(Do(RunTrial({"precision": "fp32"})))
    shared.listen(lambda events: any(p.blocks == 1 for p in of_kind(events, TrialProgress)))
    shared.client.send(Export(1, "yaml", str(target)))
    events = shared.listen(lambda e: of_kind(e, Exported))
    assert of_kind(events, Exported) == [Exported(str(target), 1)]
    assert yaml.safe_load(target.read_text())["settings"]["precision"] == "bf16"
    shared.client.send(Preview(1, "yaml"))
    assert of_kind(shared.listen(lambda e: of_kind(e, Previewed)), Previewed) == [
        Previewed(1, "yaml", target.read_text())
    ]
    shared.client.send(Preview(9, "yaml"))
    [refused] = of_kind(shared.listen(lambda e: of_kind(e, Previewed)), Previewed)
    assert refused.problem is not None
    assert "there is no trial 9" in refused.problem
    for request, words in (
        (Export(1, "yaml", str(target)), "exists; use --force"),
        (Export(1, "toml", str(target)), "unknown export format"),
        (Export(9, "yaml", str(target), True), "there is no trial 9"),
        (Export(1, "yaml", str(tmp_path / "no" / "out.yaml")), "there is no directory"),
    ):
        shared.client.send(request)
        assert words in of_kind(shared.listen(lambda e: of_kind(e, Problem)), Problem)[0].text
    file.unlink()
    shared.until_ended("trial")
    shared.client.send(Export(None, "yaml", str(target), force=True))
    assert shared.listen(lambda e: of_kind(e, Exported))


def test_relative_paths_count_from_the_folder_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file of the user's own must not stand in for a module that the engine needs.
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "typing", "gputune_tui"):
        (here / f"{name}.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(here)
    talk = Talk()
    try:
        talk.client.send(Open(fake_study(tmp_path)))
        talk.client.send(Do(RunTrial()))
        talk.until_ended("trial")
        talk.client.send(Export(None, "yaml", "here.yaml"))
        talk.listen(lambda e: of_kind(e, Exported))
        assert (here / "here.yaml").exists()
    finally:
        talk.client.close()


def test_lines_that_are_no_requests(shared: Talk, tmp_path: Path) -> None:
    wire = shared.client._socket
    assert wire is not None
    for line in (b"hello", b"{}", b'{"v":1,"kind":"Nope"}', b'{"v":2,"kind":"Cancel"}', b"\xff\xfe", b"[" * 100_000):
        wire.setblocking(True)
        wire.sendall(line + b"\n")
        wire.setblocking(False)
        assert "no request" in of_kind(shared.listen(lambda e: of_kind(e, Problem)), Problem)[0].text
    wire.setblocking(True)
    wire.sendall(b"x" * (3 << 20) + b"\n")
    wire.setblocking(False)
    assert "more than" in of_kind(shared.listen(lambda e: of_kind(e, Problem)), Problem)[0].text
    shared.client.send(Open(fake_study(tmp_path)))
    shared.until_ended("open")


def test_too_many_commands_are_refused(shared: Talk, tmp_path: Path) -> None:
    hold(shared, tmp_path)
    for _ in range(101):
        shared.client.send(Do(RunTrial()))
    events = shared.until_ended("trial")
    assert "wait already" in str(of_kind(events, TaskEnded)[0].error)
    shared.client.send(Cancel())
    assert len(of_kind(shared.until_ended("trial", 101), TaskEnded)) == 101


class BrokenEngine(Engine):
    """One with a bug."""

    @property
    def is_open(self) -> bool:
        raise ZeroDivisionError("no\nluck")


@pytest.fixture
def own_signals() -> Iterator[None]:
    """The handlers of this process come back after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("own_signals")
def test_a_bug_is_told_with_its_file_and_costs_its_command_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    near, far = socket.socketpair()
    heard: list[EngineEvent] = []

    def screen() -> None:
        far.sendall(encode_request(Export(None, "yaml", "x")) + encode_request(Do(RunTrial())))
        with far.makefile("rb") as lines:
            heard.extend(decode_event(next(lines)) for _ in range(3))
        far.sendall(encode_request(Shutdown()))

    with near, far:
        thread = threading.Thread(target=screen)
        thread.start()
        assert Server(near, BrokenEngine()).run() == 0
        thread.join()
    assert [type(event) for event in heard] == [Problem, TaskStarted, TaskEnded]
    assert "internal error: ZeroDivisionError: no luck; the details are in" in str(of_kind(heard, TaskEnded)[0].error)
    assert len(list(tmp_path.glob("gputune-error-*.txt"))) == 2


def test_shutdown_keeps_what_ran(talk: Talk, tmp_path: Path) -> None:
    hold(talk, tmp_path)
    talk.client.send(Shutdown())
    events = talk.listen(lambda _: not talk.client.alive)
    assert of_kind(events, TaskEnded) == [TaskEnded("trial", None, 130, cancelled=True)]
    assert of_kind(events, TrialFinished)[0].trial.failure is not None
    assert talk.client.pid is not None
    pid = talk.client.pid
    wait_until(lambda: not is_running(pid), 10, "it still runs")


def test_an_idle_engine_sleeps(talk: Talk, tmp_path: Path) -> None:
    talk.client.send(Open(fake_study(tmp_path)))
    talk.until_ended("open")
    process = Path(f"/proc/{talk.client.pid}")
    wait_until(lambda: (process / "stat").read_text().rpartition(")")[2].split()[0] == "S", 10, "it does not sleep")
    assert (process / "comm").read_text() == "gputune-engine\n"
    try:
        call = (process / "syscall").read_text().split()
    except OSError as error:
        pytest.skip(f"this kernel does not tell what a process waits for: {error}")
    # Number, then arguments: select and pselect6 both take their time limit as the fifth.
    assert int(call[5], 16) == 0, "it waits with a time limit"
