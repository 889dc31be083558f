"""Every way in which a screen or its engine can end: nothing is left running, nothing is lost, and it is told once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputune_tui.domain.trial import TrialState
from gputune_tui.engine.client import EngineClient
from gputune_tui.engine.commands import RunTrial, Search
from gputune_tui.engine.events import Problem, StudyOpened, StudyTrials, TaskEnded, TrialFinished, TrialProgress
from gputune_tui.engine.requests import Do, Export, Open
from gputune_tui.errors import EnvironmentProblem

from .driving import DEADLINE_S, GONE_S, Talk, is_running, of_kind, trial_processes, wait_all_gone, wait_until
from .fake_interpreter import fake_study

ROOT = Path(__file__).parents[2]


@pytest.fixture
def running(talk: Talk, tmp_path: Path) -> Talk:
    """An engine in the middle of a trial that has a child in a session of its own."""
    file = tmp_path / "hold"
    file.touch()
    talk.client.send(Open(fake_study(tmp_path, hold=file, child=1)))
    talk.client.send(Do(RunTrial()))
    talk.listen(lambda events: any(p.blocks == 1 for p in of_kind(events, TrialProgress)), "the first block")
    assert len(trial_processes(tmp_path)) == 3, "a keeper, a trial and its child"
    return talk


def ended_trials(study: Path) -> list[tuple[str, str | None]]:
    """(state, reason) of the trials whose end is in the journals."""
    texts = [path.read_text() for path in study.glob("journal-*.jsonl")]
    # The last line may be half written at this moment.
    records = [json.loads(line) for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [
        (r["trial"]["state"], (r["trial"]["failure"] or {}).get("reason")) for r in records if r["record"] == "ended"
    ]


def engine_pid(talk: Talk) -> int:
    assert talk.client.pid is not None
    return talk.client.pid


def told_end(talk: Talk) -> TaskEnded:
    """The one word about the engine's own end."""
    talk.until_ended("engine")
    assert not talk.client.alive
    assert talk.client.poll() == []
    (ended,) = [e for e in of_kind(talk.heard, TaskEnded) if e.title == "engine"]
    return ended


def test_close_in_the_middle_of_a_trial(running: Talk, tmp_path: Path) -> None:
    pid = engine_pid(running)
    running.client.close()
    assert not is_running(pid)
    assert trial_processes(tmp_path) == []
    assert ended_trials(tmp_path / "study") == [("FAIL", "KILLED")]
    running.client.close()
    running.client.send(Do(RunTrial()))
    assert running.client.poll() == []


def test_an_engine_that_does_not_answer_is_killed_with_its_trial(running: Talk, tmp_path: Path) -> None:
    pid = engine_pid(running)
    os.kill(pid, signal.SIGSTOP)
    running.client.close(patience_s=0.2)
    assert not is_running(pid)
    assert trial_processes(tmp_path) == []


def test_kill_9_of_the_engine_is_told_once_and_leaves_nothing(running: Talk, tmp_path: Path) -> None:
    os.kill(engine_pid(running), signal.SIGKILL)
    ended = told_end(running)
    assert ended.exit_code == 1
    assert ended.error is not None
    assert "signal 9, SIGKILL" in ended.error
    assert "trials so far are kept" in ended.error
    wait_all_gone(tmp_path)
    (tmp_path / "hold").unlink()
    running.client.start()
    running.client.send(Open(fake_study(tmp_path, hold=tmp_path / "hold", child=1)))
    events = running.until_ended("open")
    assert of_kind(events, StudyOpened)
    assert [trial.state for trial in of_kind(events, StudyTrials)[0].trials] == [TrialState.FAIL]


def test_sigterm_keeps_the_results(running: Talk, tmp_path: Path) -> None:
    os.kill(engine_pid(running), signal.SIGTERM)
    assert "signal 15, SIGTERM" in str(told_end(running).error)
    assert of_kind(running.heard, TrialFinished)[0].trial.state is TrialState.FAIL
    wait_all_gone(tmp_path, engine_pid(running))
    assert ended_trials(tmp_path / "study") == [("FAIL", "KILLED")]


def test_sigterm_reaches_an_idle_engine(talk: Talk) -> None:
    os.kill(engine_pid(talk), signal.SIGTERM)
    assert "SIGTERM" in str(told_end(talk).error)


def test_the_terminals_signals_mean_nothing_to_it(running: Talk, tmp_path: Path) -> None:
    pid = engine_pid(running)
    assert os.getsid(pid) == pid
    for number in (signal.SIGINT, signal.SIGHUP):
        os.kill(pid, number)
    (tmp_path / "hold").unlink()
    assert of_kind(running.until_ended("trial"), TaskEnded)[-1] == TaskEnded("trial", None, 0)


SCREEN = """
import json, sys, time
from pathlib import Path
from gputune_tui.engine.client import EngineClient
from gputune_tui.engine.commands import RunTrial
from gputune_tui.engine.events import TrialProgress
from gputune_tui.engine.requests import Do, Open
from tests.engine.fake_interpreter import fake_study
folder = Path(sys.argv[1])
client = EngineClient()
client.start()
client.send(Open(fake_study(folder, hold=folder / "hold", child=1)))
client.send(Do(RunTrial()))
while not any(isinstance(e, TrialProgress) and e.blocks == 1 for e in client.poll()):
    time.sleep(0.01)
print(client.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_kill_9_of_the_screen_ends_the_engine_and_keeps_the_results(stopped: bool, tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    with subprocess.Popen(
        [sys.executable, "-c", SCREEN, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as screen:
        assert screen.stdout is not None
        pid = int(screen.stdout.readline())
        assert is_running(pid)
        assert len(trial_processes(tmp_path)) == 3
        if stopped:
            screen.send_signal(signal.SIGSTOP)
        screen.kill()
    wait_all_gone(tmp_path, pid)
    assert ended_trials(tmp_path / "study") == [("FAIL", "KILLED")]


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


@pytest.mark.slow
def test_a_reader_that_stops_reading_stalls_nothing(talk: Talk, tmp_path: Path) -> None:
    # 12 trials with 80 000 step times each: more than the limit, to a reader that does not read.
    talk.client.send(Open(fake_study(tmp_path, steps=20000)))
    talk.until_ended("open")
    before = resident_bytes(engine_pid(talk))
    talk.client.send(Do(Search("num_workers=0,1,2,3,4,5;precision=fp32,bf16")))
    study = tmp_path / "study"
    wait_until(lambda: len(ended_trials(study)) == 12, DEADLINE_S, "the search stood still")
    held = resident_bytes(engine_pid(talk)) - before
    assert held < 200 << 20, f"{held >> 20} MiB for a reader that does not read"
    talk.client.send(Do(RunTrial({"num_workers": 8})))
    events = talk.until_ended("trial")
    listed = of_kind(events, StudyTrials)
    assert listed[0].first
    assert listed[-1].last
    known = {t.id for e in listed for t in e.trials} | {e.trial.id for e in of_kind(events, TrialFinished)}
    assert known == set(range(1, 14))
    assert [e.title for e in of_kind(events, TaskEnded)] == ["search", "trial"]


def test_sending_never_waits_for_an_engine_that_does_not_read(talk: Talk) -> None:
    os.kill(engine_pid(talk), signal.SIGSTOP)
    for _ in range(1000):
        talk.client.send(Export(None, "no such format", "x" * 1000))
    os.kill(engine_pid(talk), signal.SIGCONT)
    talk.listen(lambda events: len(of_kind(events, Problem)) == 1000)


def test_an_interpreter_that_does_not_come_up_is_told_by_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'first line' >&2\necho 'no module named \033[1mgputune_tui' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    talk = Talk()
    assert "(exit code 1, and said at last: no module named \ufffd[1mgputune_tui)" in str(told_end(talk).error)
    talk.client.close()


def test_an_interpreter_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    client = EngineClient()
    with pytest.raises(EnvironmentProblem, match="cannot start the engine process"):
        client.start()
    assert not client.alive
    assert client.poll() == []
    client.close()


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(2):
        talk = Talk()
        talk.client.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_close_waits_no_longer_than_it_must(tmp_path: Path) -> None:
    client = EngineClient()
    client.close()
    client.start()
    pid = client.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), GONE_S, "it still runs")
    client.close()
    assert not client.alive
