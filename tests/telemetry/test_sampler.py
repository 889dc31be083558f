"""The sampling process itself: what it loads, what it obeys, when it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputune_tui.domain.plain import from_plain
from gputune_tui.domain.telemetry import NodeSnapshot, SamplerSettings
from gputune_tui.telemetry.collector import SAMPLER_MODULE, sampler_command
from gputune_tui.telemetry.sampler import Orders, write_snapshot
from tests.telemetry.snapshots import DEADLINE_S, node

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sampler() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(
        sampler_command(simulated_gpus=1), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, bufsize=0
    )
    yield child
    child.kill()
    child.wait(DEADLINE_S)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


def read(child: subprocess.Popen[bytes]) -> NodeSnapshot:
    assert child.stdout is not None
    return from_plain(NodeSnapshot, json.loads(child.stdout.readline()))


def write(child: subprocess.Popen[bytes], data: bytes) -> None:
    assert child.stdin is not None
    child.stdin.write(data)


def test_it_writes_snapshots_and_ends_with_its_input(sampler: subprocess.Popen[bytes]) -> None:
    first, second = read(sampler), read(sampler)
    assert second.time_s > first.time_s
    assert first.simulated
    assert sampler.stdin is not None
    sampler.stdin.close()
    assert sampler.wait(DEADLINE_S) == 0


def test_it_ends_when_nobody_reads(sampler: subprocess.Popen[bytes]) -> None:
    read(sampler)
    assert sampler.stdout is not None
    sampler.stdout.close()
    assert sampler.wait(DEADLINE_S) == 0


def test_it_obeys_whole_orders_and_nothing_else(sampler: subprocess.Popen[bytes]) -> None:
    write(sampler, b'garbage\n{"interval_s": "soon"}\n{"unknown": 1}\n\xff\n[]\n{"interval_s": 1000, "gpus"')
    assert read(sampler).devices
    write(sampler, b": false}\n")
    # The interval was too long to wait for; a shorter one takes effect at once.
    read(sampler)
    write(sampler, b'{"interval_s": 0.25, "gpus": false}\n')
    assert read(sampler).devices == ()
    write(sampler, b'{"interval_s": 0.25}\n')
    deadline = time.monotonic() + DEADLINE_S
    while not read(sampler).devices:
        assert time.monotonic() < deadline


def test_it_loads_neither_torch_nor_the_screen_nor_what_it_does_not_read() -> None:
    code = (
        f"import sys, {SAMPLER_MODULE}, gputune_tui.telemetry.live, gputune_tui.telemetry.simulated\n"
        "print('\\n'.join(m.partition('.')[0] for m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not {"torch", "numpy", "textual", "rich", "yaml", "click"} & set(done.stdout.split())


def test_orders_come_in_pieces_and_end() -> None:
    reading, writing = os.pipe()
    try:
        orders = Orders(reading, SamplerSettings())
        os.write(writing, b'{"quiet": true}\n{"quiet": ')
        assert orders.wait(time.monotonic() + DEADLINE_S)
        assert orders.settings == SamplerSettings(quiet=True)
        assert not orders.wait(time.monotonic())
        os.write(writing, b"false}\n")
        assert orders.wait(time.monotonic() + DEADLINE_S)
        assert orders.settings == SamplerSettings()
    finally:
        os.close(writing)
    assert not orders.wait(time.monotonic() + DEADLINE_S)
    assert orders.ended
    os.close(reading)


def test_a_line_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    write_snapshot(fd, node(1.5, gpus=64))
    os.close(fd)
    (text,) = path.read_text().splitlines()
    assert from_plain(NodeSnapshot, json.loads(text)) == node(1.5, gpus=64)
