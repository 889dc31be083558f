"""The device lock between real processes: exclusive, named, and gone with its owner however that ends."""

from __future__ import annotations

import getpass
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import TrialState
from gputune_tui.engine import device_lock
from gputune_tui.engine.commands import Compare, RunTrial, StudyConfig
from gputune_tui.engine.device_lock import DeviceLock, Holder
from gputune_tui.engine.engine import Engine
from gputune_tui.engine.events import Compared, EngineEvent, Problem, StudyOpened, TrialFinished
from gputune_tui.trial.launcher import LocalLauncher

from .driving import of_kind, wait_until
from .fake_interpreter import fake_study

OWNER = """
import sys, time
from gputune_tui.engine.device_lock import DeviceLock
lock = DeviceLock(sys.argv[1])
print(lock.acquire(), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def device() -> str:
    """A device of this test alone."""
    return f"test-{os.getpid()}"


@pytest.fixture
def owner(device: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, device], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_it_is_exclusive_within_a_process_and_can_be_taken_again(device: str) -> None:
    first, second = DeviceLock(device), DeviceLock(device)
    assert first.acquire()
    assert not second.acquire()
    assert not second.is_held
    assert DeviceLock(device + "-other").acquire()
    first.release()
    first.release()
    assert second.acquire()
    second.release()
    assert first.holder() is None


def test_another_process_holds_it_and_is_named(device: str, owner: subprocess.Popen[str]) -> None:
    lock = DeviceLock(device)
    assert not lock.acquire()
    for _ in range(300):  # asking does not wear it out, nor does it wait
        holder = lock.holder()
    assert lock.acquire() is False
    first = DeviceLock(device).holder()
    assert first is None or first.pid == owner.pid
    assert holder is None or holder.pid == owner.pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_owner(device: str, owner: subprocess.Popen[str], number: int) -> None:
    waiting = DeviceLock(device).wait()
    news = next(waiting)
    assert isinstance(news, Problem)
    assert f"pid {owner.pid}" in news.text
    assert next(waiting) is None
    owner.send_signal(number)
    owner.wait()
    wait_until(lambda: next(waiting, "taken") == "taken", 30, "the lock of a dead process was not taken over")


def test_a_child_does_not_inherit_it(device: str) -> None:
    lock = DeviceLock(device)
    assert lock.acquire()
    child = subprocess.Popen(["sleep", "1000"], close_fds=False)
    try:
        lock.release()
        assert lock.acquire()
    finally:
        child.kill()
        child.wait()
        lock.release()


OWNER_WITH_CHILD = """
import subprocess, sys
from gputune_tui.engine.device_lock import DeviceLock
lock = DeviceLock(sys.argv[1])
lock.acquire()
child = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, close_fds=False)
print(child.pid, flush=True)
child.wait()
"""


def test_a_killed_owner_leaves_no_lock_to_what_it_started(device: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER_WITH_CHILD, device], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        assert not DeviceLock(device).acquire()
        owner.kill()
        owner.wait()
        os.kill(child, 0)
        lock = DeviceLock(device)
        wait_until(lock.acquire, 30, "the child of a dead owner holds its lock")
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)
        owner.stdout.close()


OTHER_USER = 65534
"""nobody, who may write to no place of ours."""


@pytest.mark.privileged
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_it_holds_across_users_and_names_them(device: str, umask: int, tmp_path: Path) -> None:
    def by_other(code: str) -> subprocess.Popen[str]:
        # The other user cannot read this source tree, so the process becomes that user once all is imported.
        become = f"import os; os.setgroups([]); os.setgid({OTHER_USER}); os.setuid({OTHER_USER}); os.umask({umask})\n"
        first, rest = code.split("lock = ", 1)
        command = [sys.executable, "-c", f"{first}{become}lock = {rest}", device]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)

    theirs = by_other(OWNER)
    assert theirs.stdout is not None
    assert theirs.stdout.readline() == "True\n"
    ours = DeviceLock(device)
    assert not ours.acquire(), "root has no privilege here"
    holder = ours.holder()
    assert holder is not None
    assert holder.text() == f"pid {theirs.pid}, user nobody"
    theirs.kill()
    theirs.wait()
    theirs.stdout.close()
    wait_until(ours.acquire, 30, "the lock of a dead user's process was not free")
    refused = by_other(OWNER)
    assert refused.stdout is not None
    assert refused.stdout.readline() == "False\n"
    refused.kill()
    refused.wait()
    refused.stdout.close()
    ours.release()


def test_no_file_of_that_name_can_be_in_its_way(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (device_lock.PREFIX.strip("\0") + device, f"@{device_lock.PREFIX.strip(chr(0))}{device}", device):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/dev/null")
    before = sorted(tmp_path.rglob("*"))
    lock = DeviceLock(device)
    assert lock.acquire()
    assert not DeviceLock(device).acquire()
    lock.release()
    assert sorted(tmp_path.rglob("*")) == before


def opened(folder: Path, share: bool) -> Engine:
    engine = Engine()
    for _ in engine.open(replace(fake_study(folder), share=share)):
        pass
    return engine


@pytest.fixture
def own_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The locks of this test alone, so that nothing else on the machine is waited for."""
    monkeypatch.setattr(device_lock, "PREFIX", f"\0gputune-test-{os.getpid()}/")


@pytest.mark.usefixtures("own_locks")
@pytest.mark.parametrize("command", [RunTrial(), Compare({}, {"num_workers": 1})])
def test_a_trial_waits_for_whoever_measures_and_gives_the_device_back(
    tmp_path: Path, command: RunTrial | Compare
) -> None:
    other = DeviceLock("cpu")
    assert other.acquire()
    engine = opened(tmp_path, share=False)
    task = engine.handle(command)
    [said] = itertools.islice((event for event in task if isinstance(event, Problem)), 1)
    assert f"pid {os.getpid()}" in said.text
    assert [event for event in itertools.islice(task, 3) if event is not None] == []
    other.release()
    rest: list[EngineEvent] = [event for event in task if event is not None]
    assert of_kind(rest, TrialFinished)[0].trial.state is TrialState.COMPLETE
    assert bool(of_kind(rest, Compared)) == isinstance(command, Compare)
    assert other.acquire(), "the device was not given back"
    other.release()
    engine.close()


@pytest.mark.usefixtures("own_locks")
def test_a_script_is_looked_at_only_when_nobody_measures(tmp_path: Path) -> None:
    other = DeviceLock("cpu")
    assert other.acquire()
    script = str(Path(__file__).parents[1] / "scripts" / "mnist.py")
    workload = WorkloadRef("mnist", command=(sys.executable, script))
    engine = Engine(LocalLauncher())
    task = engine.open(StudyConfig(workload, device="cpu", study=str(tmp_path / "study")))
    [said] = itertools.islice((event for event in task if isinstance(event, Problem)), 1)
    assert f"pid {os.getpid()}" in said.text
    other.release()
    [opened] = of_kind([event for event in task if event is not None], StudyOpened)
    assert opened.identity.script is not None
    assert opened.identity.global_batch_size == 32
    assert other.acquire(), "the device was not given back"
    other.release()
    engine.close()


@pytest.mark.usefixtures("own_locks")
def test_a_cancelled_trial_gives_the_device_back(tmp_path: Path) -> None:
    engine, other = opened(tmp_path, share=False), DeviceLock("cpu")
    task = engine.handle(RunTrial())
    wait_until(lambda: next(task) is None and engine.session.lock.is_held, 30, "the trial never began")
    assert not other.acquire()
    task.close()
    assert other.acquire()
    other.release()
    engine.close()


@pytest.mark.usefixtures("own_locks")
def test_sharing_does_not_wait(tmp_path: Path) -> None:
    other = DeviceLock("cpu")
    assert other.acquire()
    engine = opened(tmp_path, share=True)
    events = [event for event in engine.handle(RunTrial()) if event is not None]
    assert of_kind(events, TrialFinished)
    assert not of_kind(events, Problem)
    other.release()
    engine.close()


def test_whoever_shares_makes_itself_known_to_the_next_holder_or_becomes_it(device: str) -> None:
    holder, sharer = DeviceLock(device), DeviceLock(device)
    me = Holder(os.getpid(), getpass.getuser())
    assert holder.acquire()
    assert sharer.share() == me
    assert holder.sharers() == (me,)
    holder.release()
    assert holder.acquire()
    assert holder.sharers() == ()
    assert sharer.sharers() == (me,)
    assert holder.sharers() == (me,)
    joined = sharer._joined
    sharer.sharers()
    assert sharer._joined is joined, "nothing has changed"
    holder.release()
    sharer.sharers()
    assert sharer.is_held
    assert not holder.acquire()
    sharer.release()
