"""Signals reach the process that was meant, and no other."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gputune_tui.domain.telemetry import ProcessSnapshot
from gputune_tui.errors import EnvironmentProblem
from gputune_tui.telemetry.proc_stat import read_stat
from gputune_tui.telemetry.signals import send_signal, why_not

DEADLINE_S = 30.0


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
    yield made
    with contextlib.suppress(ProcessLookupError):
        made.kill()
    made.wait(DEADLINE_S)


def seen(pid: int) -> ProcessSnapshot:
    started = read_stat(f"/proc/{pid}").started
    return ProcessSnapshot(pid, 0, getpass.getuser(), None, None, None, "sleep 600", started=started)


def test_it_arrives(child: subprocess.Popen[bytes]) -> None:
    send_signal(seen(child.pid), signal.SIGTERM)
    assert child.wait(DEADLINE_S) == -signal.SIGTERM


def test_another_process_of_the_same_number_is_spared(child: subprocess.Popen[bytes]) -> None:
    earlier = replace(seen(child.pid), started=1)
    with pytest.raises(EnvironmentProblem, match="another has its number"):
        send_signal(earlier, signal.SIGKILL)
    assert child.poll() is None


def test_one_that_has_ended_is_a_sentence(child: subprocess.Popen[bytes]) -> None:
    process = seen(child.pid)
    child.kill()
    child.wait(DEADLINE_S)
    with pytest.raises(EnvironmentProblem, match="SIGTERM could not be sent"):
        send_signal(process, signal.SIGTERM)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"is_foreign": True}, "another namespace"),
        ({"started": None}, "another namespace"),
        ({"user": "somebody-else"}, "belongs to somebody-else"),
    ],
)
def test_what_is_not_ours_is_never_tried(child: subprocess.Popen[bytes], change: dict[str, object], words: str) -> None:
    process = replace(seen(child.pid), **change)  # type: ignore[arg-type]
    assert words in (why_not(process) or "")
    with pytest.raises(EnvironmentProblem, match=words):
        send_signal(process, signal.SIGKILL)
    assert child.poll() is None


def test_what_the_system_refuses_is_a_sentence(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    with pytest.raises(EnvironmentProblem, match="Operation not permitted"):
        send_signal(seen(child.pid), signal.SIGTERM)
    process = seen(child.pid)
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(EnvironmentProblem, match="belongs to"):
        send_signal(process, signal.SIGTERM)
