"""The collector against processes that do what samplers should not: half lines, garbage, silence, death."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gputune_tui.domain.telemetry import DeviceSnapshot, NodeSnapshot
from gputune_tui.telemetry.collector import (
    CLOSE_PATIENCE_S,
    GPU_DELAYS_S,
    RESTART_DELAYS_S,
    SETTLED_S,
    START_PATIENCE_S,
    Collector,
    sampler_command,
)
from tests.telemetry.scripts import Clock, Script, order
from tests.telemetry.snapshots import device, is_running, line, no_longer_runs, node, until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collect(clock: Clock) -> Iterator[Callable[..., Collector]]:
    made: list[Collector] = []

    def begin(command: tuple[str, ...], **options: float) -> Collector:
        collector = Collector(command, clock=clock, **options)
        made.append(collector)
        collector.start()
        return collector

    yield begin
    for collector in made:
        pid = collector.pid
        collector.close()
        assert pid is None or no_longer_runs(pid)


def next_snapshot(collector: Collector) -> NodeSnapshot:
    return until(collector.poll)


def test_the_newest_of_several_snapshots_is_taken_and_garbage_is_not(
    script: Script, collect: Callable[..., Collector]
) -> None:
    script.file("a", line(node(1.0)) + line(node(2.0)) + "garbage\n{}\n\n[1]\n" + '{"time_s": 1}\n')
    collector = collect(script.lives("say a; listen"))
    assert next_snapshot(collector) == node(2.0)
    assert collector.problem is None
    assert collector.poll() is None
    assert collector.age_s is not None
    assert collector.age_s < 1.0


def test_bytes_that_are_no_text_and_deep_nesting_are_garbage(script: Script, collect: Callable[..., Collector]) -> None:
    script.file("a", b"\xff\xfe\x00\n" + b"[" * 100_000 + b"\n" + line(node(3.0)).encode() + b"\x80\n")
    assert next_snapshot(collect(script.lives("say a; listen"))) == node(3.0)


def test_a_line_that_comes_in_two_parts_is_one(script: Script, collect: Callable[..., Collector]) -> None:
    text = line(node(1.0, gpus=3))
    script.file("a", line(node(0.5)) + text[:90])
    script.file("b", text[90:])
    collector = collect(script.lives("say a; until [ -e go ]; do sleep 0.02; done; say b; listen"))
    assert next_snapshot(collector) == node(0.5)
    for _ in range(5):
        assert collector.poll() is None
    script.file("go", "")
    assert next_snapshot(collector) == node(1.0, gpus=3)


def test_an_endless_line_is_silence_and_does_not_grow(
    script: Script, collect: Callable[..., Collector], clock: Clock
) -> None:
    collector = collect(script.lives("cat /dev/zero", "listen"), stale_after_s=5.0)
    first = collector.pid or 0
    for _ in range(int(START_PATIENCE_S) + 2):
        assert collector.poll() is None
        clock.now += 1.0
    assert "did not answer" in (collector.problem or "")
    until(lambda: no_longer_runs(first))


def test_orders_reach_the_process_whole_and_at_its_start(script: Script, collect: Callable[..., Collector]) -> None:
    collector = collect(script.lives("listen"), interval_s=2.0)
    collector.set_quiet(True)
    collector.set_interval(0.5)
    until(lambda: len(script.heard()) == 3)
    assert script.heard() == [
        order(interval_s=2.0, quiet=False, gpus=True),
        order(interval_s=2.0, quiet=True, gpus=True),
        order(interval_s=0.5, quiet=True, gpus=True),
    ]


def test_a_crash_keeps_the_gpus_as_stale_and_the_host_goes_on(
    script: Script, collect: Callable[..., Collector], clock: Clock
) -> None:
    script.file("a", line(node(1.0, gpus=2)))
    script.file("b", line(node(2.0, gpus=0)))
    script.file("c", line(node(3.0, gpus=2)))
    collector = collect(
        script.lives("say a; kill -SEGV $$", "say b; until grep -q true} orders; do sleep 0.02; done; say c; listen")
    )
    assert [d.state for d in next_snapshot(collector).devices] == ["live", "live"]
    script.file("orders", "")
    after = next_snapshot(collector)
    assert [(d.uuid, d.state) for d in after.devices] == [("GPU-0", "stale"), ("GPU-1", "stale")]
    assert after.time_s == 1.0
    problem = collector.problem or ""
    assert "SIGSEGV" in problem
    assert "after 5 s" in problem
    assert collector.poll() is None
    clock.now += RESTART_DELAYS_S[0]
    # The second life was told to leave the driver alone.
    host_only = next_snapshot(collector)
    assert (host_only.time_s, host_only.driver) == (2.0, "580.1")
    assert [d.state for d in host_only.devices] == ["stale", "stale"]
    assert collector.problem == problem


def test_the_gpus_are_asked_again_after_a_while(
    script: Script, collect: Callable[..., Collector], clock: Clock
) -> None:
    script.file("host", line(node(2.0, gpus=0)))
    script.file("all", line(node(3.0, gpus=2)))
    listening = (
        "while read -r line; do echo $line >> orders; "
        "case $line in *'\"gpus\": true'*) say all;; *) say host;; esac; done"
    )
    collector = collect(script.lives("say all; kill -SEGV $$", listening))
    assert next_snapshot(collector).time_s == 3.0
    next_snapshot(collector)
    clock.now += RESTART_DELAYS_S[0]
    assert next_snapshot(collector).time_s == 2.0
    assert script.heard() == [order(interval_s=1.0, quiet=False, gpus=False)]
    clock.now += GPU_DELAYS_S[0]
    collector.set_quiet(True)
    assert next_snapshot(collector).time_s == 2.0
    found = next_snapshot(collector)
    assert [d.state for d in found.devices] == ["live", "live"]
    assert collector.problem is None
    assert script.heard()[-1] == order(interval_s=1.0, quiet=True, gpus=True)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("exit 0", "ended with exit code 0"),
        ("exit 7", "ended with exit code 7"),
        ("kill -KILL $$", "was ended by SIGKILL;"),
        ("kill -BUS $$", "was ended by SIGBUS, as by a driver library that crashes"),
    ],
)
def test_every_end_is_told_and_restarted(
    script: Script, collect: Callable[..., Collector], clock: Clock, end: str, words: str
) -> None:
    collector = collect(script.lives(end, "listen"))
    until(lambda: collector.poll() or collector.problem)
    assert words in (collector.problem or "")
    assert collector.age_s is None
    clock.now += RESTART_DELAYS_S[0]
    until(lambda: collector.poll() or script.lived() == 2)


def test_deaths_in_a_row_are_answered_ever_more_slowly(
    script: Script, collect: Callable[..., Collector], clock: Clock
) -> None:
    collector = collect(script.lives("exit 1"))
    for number, delay_s in enumerate((*RESTART_DELAYS_S, RESTART_DELAYS_S[-1]), 1):
        until(lambda: collector.poll() or collector.pid is None)
        assert script.lived() == number
        clock.now += delay_s - 0.1
        collector.poll()
        assert collector.pid is None
        clock.now += 0.1
        collector.poll()
        assert collector.pid is not None


def test_a_long_sound_life_is_forgiven(script: Script, collect: Callable[..., Collector], clock: Clock) -> None:
    script.file("a", line(node()))
    collector = collect(script.lives("exit 1", "say a; until [ -e go ]; do sleep 0.02; done; say a; exit 1"))
    until(lambda: collector.poll() or collector.problem)
    clock.now += RESTART_DELAYS_S[0]
    collector.poll()
    clock.now += GPU_DELAYS_S[0]
    next_snapshot(collector)  # the driver may be asked again from here on
    clock.now += SETTLED_S
    script.file("go", "")
    next_snapshot(collector)
    next_snapshot(collector)
    assert "after 5 s" in (collector.problem or "")


def test_silence_is_replaced_and_one_that_does_not_die_is_abandoned(
    script: Script, collect: Callable[..., Collector], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.file("a", line(node()))
    collector = collect(script.lives("trap '' HUP; say a; exec sleep 600", "listen"), stale_after_s=4.0)
    next_snapshot(collector)
    first = collector.pid
    assert first is not None
    # What is stuck in the kernel does not die of the signal.
    with monkeypatch.context() as patch:
        patch.setattr(subprocess.Popen, "kill", lambda _self: None)
        while (stale := collector.poll()) is None:
            assert collector.age_s is not None
            assert collector.age_s < 6.0
            clock.now += 0.5
    assert [d.state for d in stale.devices] == ["stale"]
    assert "did not answer for 4 s" in (collector.problem or "")
    assert is_running(first)
    clock.now += RESTART_DELAYS_S[0]
    until(lambda: collector.poll() or script.lived() == 2)
    assert collector.pid not in (None, first)
    os.kill(first, signal.SIGKILL)
    until(lambda: collector.poll() or not Path(f"/proc/{first}").exists())


def test_a_caller_that_stood_still_does_not_blame_the_process(
    script: Script, collect: Callable[..., Collector], clock: Clock
) -> None:
    script.file("a", line(node()))
    collector = collect(script.lives("say a; until [ -e go ]; do sleep 0.02; done; say a; listen"))
    next_snapshot(collector)
    clock.now += 3600.0
    assert collector.poll() is None
    assert collector.problem is None
    script.file("go", "")
    next_snapshot(collector)


def test_a_slow_start_is_not_silence(script: Script, collect: Callable[..., Collector], clock: Clock) -> None:
    collector = collect(script.lives("listen"), stale_after_s=1.0)
    for _ in range(int(START_PATIENCE_S) - 1):
        clock.now += 1.0
        assert collector.poll() is None
    assert collector.problem is None


def test_the_reason_why_there_is_no_gpu_is_no_problem_of_the_collector(
    script: Script, collect: Callable[..., Collector]
) -> None:
    script.file("a", line(node(gpus=0, problem="No NVIDIA GPU: because.")))
    collector = collect(script.lives("say a; listen"))
    assert next_snapshot(collector).problem == "No NVIDIA GPU: because."
    assert collector.problem is None


def test_a_command_that_does_not_exist_is_a_sentence(collect: Callable[..., Collector], clock: Clock) -> None:
    collector = collect(("/no/such/interpreter",))
    assert "No such file or directory" in (collector.problem or "")
    clock.now += RESTART_DELAYS_S[0]
    assert collector.poll() is None
    collector.close()
    clock.now += 3600.0
    assert collector.poll() is None


def test_close_ends_even_what_ignores_the_end_of_its_input(script: Script, collect: Callable[..., Collector]) -> None:
    script.file("a", line(node()))
    collector = collect(script.lives("trap '' HUP TERM INT; say a; while :; do sleep 600; done"))
    next_snapshot(collector)
    pid = collector.pid
    assert pid is not None
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout.split()
    begin = time.monotonic()
    collector.close()
    assert time.monotonic() - begin < 20 * CLOSE_PATIENCE_S
    assert no_longer_runs(pid)
    assert collector.poll() is None
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)


def test_close_before_start_and_twice_is_nothing() -> None:
    collector = Collector(("/bin/sh", "-c", "read x"))
    assert collector.poll() is None
    collector.close()
    collector.start()
    collector.close()
    collector.close()


PARENT = """
import sys, time
from gputune_tui.telemetry.collector import Collector
collector = Collector(interval_s=0.25)
collector.start()
while collector.poll() is None:
    time.sleep(0.02)
print(collector.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_the_sampler_ends_with_its_parent(signal_number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    assert os.getsid(pid) == pid
    parent.send_signal(signal_number)
    parent.wait(60)
    parent.stdout.close()
    until(lambda: no_longer_runs(pid))


def test_the_real_sampler_is_restarted_when_it_is_killed_and_ends_at_close() -> None:
    collector = Collector(sampler_command(simulated_gpus=2), interval_s=0.25)
    collector.start()
    try:
        assert [d.state for d in next_snapshot(collector).devices] == ["live", "live"]
        first = collector.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: collector.poll() and collector.problem)
        assert "SIGKILL" in (collector.problem or "")
        until(lambda: collector.poll() or collector.pid)
        found = next_snapshot(collector)
        assert [d.state for d in found.devices] == ["stale", "stale"]
        assert found.simulated
        second = collector.pid
        assert second not in (None, first)
    finally:
        last = collector.pid
        collector.close()
    assert last is None or no_longer_runs(last)


def test_what_a_new_process_does_not_know_yet_is_kept(
    script: Script, collect: Callable[..., Collector], clock: Clock
) -> None:
    lost = replace(device(1), state="lost", power_w=None)
    unknown = DeviceSnapshot(0, None, None, "stale", None, None, None, None, None, None, None, None, ())
    script.file("a", line(replace(node(1.0), devices=(device(0), lost))))
    script.file("b", line(node(2.0, gpus=0)))
    script.file("c", line(replace(node(3.0), devices=(unknown, replace(unknown, index=1)))))
    script.file("d", line(replace(node(4.0), devices=(device(0, power_w=7.0), replace(unknown, index=1)))))
    steps = "say b; until [ -e c-now ]; do sleep 0.02; done; say c; until [ -e d-now ]; do sleep 0.02; done; say d; "
    collector = collect(script.lives("say a; exit 1", steps + "listen"))
    assert next_snapshot(collector).devices == (device(0), lost)
    old = (replace(device(0), state="stale"), lost)
    assert next_snapshot(collector).devices == old
    clock.now += RESTART_DELAYS_S[0] + GPU_DELAYS_S[0]
    assert next_snapshot(collector).devices == old
    script.file("c-now", "")
    assert next_snapshot(collector).devices == old
    assert collector.problem is not None
    script.file("d-now", "")
    assert next_snapshot(collector).devices == (device(0, power_w=7.0), lost)
    assert not collector.problem
