"""The device lock between real processes: exclusive, named, and gone with its owner however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gputune_tui.engine.device_lock import DeviceLock
from gputune_tui.engine.events import Problem

from .driving import wait_until

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
