"""Who may measure on a device beside whom: refused with names, waited for, shared and recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputune_tui.domain.conditions import Conditions
from gputune_tui.domain.telemetry import ProcessSnapshot
from gputune_tui.domain.trial import TrialState
from gputune_tui.engine import device_lock
from gputune_tui.engine.commands import Compare, MeasureAgain, RunTrial, Search
from gputune_tui.engine.device_lock import DeviceLock, Holder
from gputune_tui.engine.device_place import DevicePlace
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import DeviceInUse, EngineEvent, Problem, TrialFinished
from gputune_tui.engine.node import ChosenDevice
from gputune_tui.errors import EnvironmentProblem
from gputune_tui.store.reading import read_study

from .driving import of_kind, wait_until
from .fake_interpreter import fake_study
from .gpus import GPU, ScriptedSource, row, scripted_node

ON_CPU = ChosenDevice("cpu", "cpu", None, None)
ON_GPU = ChosenDevice("cuda:0", "cuda:0", GPU, None)
SHARER = """
import sys, time
from gputune_tui.engine import device_lock
device_lock.PREFIX = sys.argv[1].replace("@", chr(0))
lock = device_lock.DeviceLock(sys.argv[2])
sys.stdin.readline()
holder = lock.share()
print(holder and holder.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The locks of this test alone."""
    monkeypatch.setattr(device_lock, "PREFIX", f"\0gputune-place-{os.getpid()}/")


@pytest.fixture
def sharer() -> Iterator[subprocess.Popen[str]]:
    """Another instance that, once told, measures on the CPU beside whoever does."""
    prefix = device_lock.PREFIX.replace("\0", "@")
    process = subprocess.Popen(
        [sys.executable, "-c", SHARER, prefix, "cpu"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def beside(process: subprocess.Popen[str]) -> str:
    """Let it measure; returns the pid of the holder that it found."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def on_gpu(share: bool = False) -> tuple[DevicePlace, ScriptedSource]:
    node, source = scripted_node()
    return DevicePlace(ON_GPU, share, node), source


def test_a_gpu_that_somebody_computes_on_is_refused_with_pid_user_and_memory() -> None:
    place, source = on_gpu()
    assert list(filter(None, place.admit())) == []
    source.processes = (row(4711, 2 << 30),)
    task, told = place.admit(), list[EngineEvent]()
    with pytest.raises(EnvironmentProblem) as refusal:
        told += filter(None, task)
    for word in ("cuda:0", "pid 4711", "alice", "2.00 GiB", "python train.py", "--share"):
        assert word in str(refusal.value)
    place.share = True
    assert list(filter(None, place.admit())) == []
    place.close()


def test_the_refusal_is_an_event_too() -> None:
    place, source = on_gpu()
    source.processes = (row(4711),)
    task = place.admit()
    event = next(event for event in task if event is not None)
    assert isinstance(event, DeviceInUse)
    assert (event.device, event.others[0].pid) == ("cuda:0", 4711)
    task.close()


def test_who_comes_between_two_trials_is_waited_for() -> None:
    place, source = on_gpu()
    source.processes = (row(4711),)
    task = place.take()
    event = next(event for event in task if event is not None)
    assert isinstance(event, Problem)
    assert "pid 4711 (alice" in event.text
    assert [next(task) for _ in range(3)] == [None] * 3
    assert place.lock.is_held
    source.processes = ()
    assert list(filter(None, task)) == []
    place.release()
    assert not place.lock.is_held


@pytest.mark.parametrize("others", [(), (row(4711),)], ids=["while the GPU is looked at", "while somebody computes"])
def test_a_wait_that_is_broken_off_leaves_the_device_to_others(others: tuple[ProcessSnapshot, ...]) -> None:
    place, source = on_gpu()
    source.processes = others
    task = place.take()
    for event in task:
        if place.lock.is_held and (event is None or not others):
            break
    task.close()
    assert not place.lock.is_held
    source.processes = ()
    assert list(filter(None, place.take())) == []
    place.release()


def test_a_launch_that_shares_a_gpu_records_with_whom() -> None:
    place, source = on_gpu(share=True)
    source.processes = (row(4711),)
    assert list(filter(None, place.take())) == []
    watch = place.watch()
    place.release()
    [other] = watch.conditions(Conditions()).others
    assert (other.pid, other.user, other.memory_bytes) == (4711, "alice", 1 << 30)


def test_who_measures_beside_a_holder_is_seen_by_both(sharer: subprocess.Popen[str]) -> None:
    place = DevicePlace(ON_CPU, share=False)
    assert beside(sharer) == "None", "it holds the lock, since nobody did when it came"
    waiting = place.take()
    news = next(waiting)
    assert isinstance(news, Problem)
    assert f"pid {sharer.pid}" in news.text
    place = DevicePlace(ON_CPU, share=True)
    assert list(filter(None, place.take())) == []
    watch = place.watch()
    place.release()
    [holder] = watch.conditions(Conditions()).others
    assert holder.pid == sharer.pid
    assert (holder.memory_bytes or 0) > 1 << 20, "resident memory of its tree"


def test_a_holder_sees_who_shares_and_not_who_only_asks(sharer: subprocess.Popen[str]) -> None:
    place = DevicePlace(ON_CPU, share=False)
    assert list(filter(None, place.take())) == []
    watch = place.watch()
    asked = DeviceLock("cpu").holder()
    assert asked is not None
    assert asked.pid == os.getpid()
    assert place.lock.sharers() == ()
    assert beside(sharer) == str(os.getpid())
    sharer.kill()
    sharer.wait()
    place.release()
    assert [other.pid for other in watch.conditions(Conditions()).others] == [sharer.pid]
    for _ in place.take():
        pass
    assert place.watch().conditions(Conditions()).others == (), "those of the launch before are forgotten"
    place.release()


def test_more_callers_than_the_backlog_holds_share_without_a_name() -> None:
    holder, callers = DeviceLock("cpu"), [DeviceLock("cpu") for _ in range(device_lock.BACKLOG + 8)]
    assert holder.acquire()
    names = [caller.share() for caller in callers]
    assert all(isinstance(name, Holder) for name in names)
    assert {name.pid for name in names if name is not None} == {os.getpid(), None}
    for caller in callers:
        caller.release()
    assert holder.sharers()
    holder.release()


def opened(folder: Path) -> Engine:
    engine = Engine()
    for _ in engine.open(fake_study(folder)):
        pass
    return engine


@pytest.mark.parametrize("command", [RunTrial(), Search("num_workers=0"), Compare({}, {"num_workers": 1})])
def test_a_refused_command_stores_nothing(tmp_path: Path, command: RunTrial | Search | Compare) -> None:
    engine = opened(tmp_path)
    node, source = scripted_node()
    engine.session.place.node = node
    source.processes = (row(4711),)
    with pytest.raises(EnvironmentProblem, match="pid 4711"):
        list(engine.handle(command))
    assert engine.session.trials == []
    engine.close()
    assert source.log[-1] == "close"


def test_a_row_is_measured_again_and_its_old_launches_count_no_more(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    list(engine.handle(RunTrial()))
    [before] = engine.session.trials
    events = [event for event in engine.handle(MeasureAgain((1,))) if event is not None]
    [finished] = of_kind(events, TrialFinished)
    assert (finished.trial.id, finished.trial.state, len(finished.trial.launches)) == (1, TrialState.COMPLETE, 1)
    assert finished.trial != before
    assert list(filter(None, engine.handle(MeasureAgain()))) == [], "nothing disturbed it"
    engine.close()
    current = read_study(tmp_path / "study").current
    assert current is not None
    assert current.trials == (finished.trial,)


@pytest.mark.parametrize("trial_ids", [(2,), (1, 99)])
def test_what_is_not_there_cannot_be_measured_again(tmp_path: Path, trial_ids: tuple[int, ...]) -> None:
    engine = opened(tmp_path)
    list(engine.handle(RunTrial()))
    with pytest.raises(Exception, match=f"there is no trial {trial_ids[-1]}"):
        list(engine.handle(MeasureAgain(trial_ids)))
    engine.close()


def test_measuring_again_that_is_interrupted_leaves_the_figures(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    list(engine.handle(RunTrial()))
    before = engine.session.trials
    task = engine.handle(MeasureAgain((1,)))
    wait_until(lambda: next(task) is None and engine.session.lock.is_held, 30, "the launch never began")
    task.close()
    assert engine.session.trials == before
    engine.close()
