"""`monitor`: the node's numbers as a screen, as text, or as JSON."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gputune_tui.cli.options import interval_of
from gputune_tui.domain.telemetry import NodeSnapshot
from gputune_tui.errors import EnvironmentProblem, UsageError
from gputune_tui.telemetry.collector import Collector, sampler_command
from gputune_tui.telemetry.document import node_document
from gputune_tui.telemetry.recording import Recorder, read_recording

ONCE_INTERVAL_S = 0.25
"""For the few readings of `--once`, which it has to wait for."""
SETTLED_AFTER = 2
"""Readings of the GPUs: rates are differences of two."""
PATIENCE_S = 3.0
"""After the first snapshot `--once` waits no longer for what is still unknown."""
START_PATIENCE_S = 15.0
GLANCE_S = 0.5
LOW_BANDWIDTH_INTERVAL_S = 2.0


def monitor(given: dict[str, Any]) -> int:
    """Body of the command; returns the exit code.

    Raises:
        UsageError: options that contradict each other, a file that cannot be read or written.
        EnvironmentProblem: no terminal for the screen, or the node cannot be read at all.
    """
    once, stream, json_path = given["once"], given["stream"], given["json_path"]
    if stream and (once or json_path is not None):
        raise UsageError("--stream writes JSON to stdout until it is ended; leave out --once and --json")
    interval_s = interval_of(given["interval"])
    replay = None if given["replay"] is None else Path(given["replay"])
    if replay is not None and next(read_recording(replay), None) is None:
        raise UsageError(f"{replay} holds no snapshot; record for longer")
    headless = once or stream or json_path is not None
    if headless:
        collector = Collector(sampler_command(recording=replay), interval_s if stream else ONCE_INTERVAL_S)
        collector.expand((), all_of_them=True)
        recorder = None if given["record"] is None else Recorder(Path(given["record"]))
        try:
            collector.start()
            return _stream(collector, recorder) if stream else _once(collector, recorder, json_path)
        finally:
            collector.close()
            if recorder is not None:
                recorder.close()
    return _screen(given, interval_s, replay)


def _screen(given: dict[str, Any], interval_s: float, replay: Path | None) -> int:
    from gputune_tui.tui.terminal import look

    appearance = look(os.environ, given["ascii_only"])
    if given["low_bandwidth"]:
        # The rate is read by textual when it is imported.
        os.environ.setdefault("TEXTUAL_FPS", "10")
        interval_s = max(interval_s, LOW_BANDWIDTH_INTERVAL_S)
    recorder = None if given["record"] is None else Recorder(Path(given["record"]))
    collector = Collector(sampler_command(recording=replay), interval_s)
    # It reads the node while this process is still being loaded.
    collector.start()
    # Most of what is loaded now stays for good: to look through it again and again makes the start a tenth longer.
    gc.disable()
    try:
        from gputune_tui.tui.monitor_app import MonitorOptions, run_monitor

        options = MonitorOptions(given["mouse"], given["readonly"] or replay is not None, interval_s)
        return run_monitor(collector, recorder, appearance, options)
    finally:
        collector.close()
        if recorder is not None:
            recorder.close()


def _once(collector: Collector, recorder: Recorder | None, json_path: str | None) -> int:
    snapshot = _settled(collector)
    if recorder is not None:
        recorder.take(snapshot)
    if json_path is not None:
        from gputune_tui.cli.output import write_json

        write_json(json_path, node_document(snapshot, collector.problem))
    if json_path != "-":
        from gputune_tui.cli.monitor_text import node_text

        click.echo(node_text(snapshot, collector.problem))
    return 0


def _settled(collector: Collector) -> NodeSnapshot:
    """A snapshot in which all is known that can be, or the newest after a while."""
    deadline = time.monotonic() + START_PATIENCE_S
    found: NodeSnapshot | None = None
    readings = 0
    while time.monotonic() < deadline:
        collector.wait(GLANCE_S)
        newest = collector.poll()
        if newest is None:
            continue
        if found is None:
            deadline = time.monotonic() + PATIENCE_S
        found = newest
        readings += newest.problem is not None or bool(newest.devices)
        answered = all(device.state != "stale" for device in newest.devices)
        if readings >= SETTLED_AFTER and answered and newest.host.cpu_fraction is not None:
            break
    if found is None:
        raise EnvironmentProblem(
            (collector.problem or f"the node could not be read within {START_PATIENCE_S:.0f} s")
            + " Try again, and see `ps` for processes that hang in the kernel."
        )
    return found


def _stream(collector: Collector, recorder: Recorder | None) -> int:
    with _ended_by_signals() as ended:
        while not ended:
            collector.wait(GLANCE_S)
            snapshot = collector.poll()
            if snapshot is None:
                continue
            if recorder is not None:
                recorder.take(snapshot)
            document = node_document(snapshot, collector.problem)
            click.echo(json.dumps(document, separators=(",", ":"), ensure_ascii=False, allow_nan=False))
    return 128 + ended[0]


@contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """Holds the numbers of the signals that asked for the end."""
    numbers: list[int] = []
    wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda n, _frame: numbers.append(n)) for number in wanted}
    try:
        yield numbers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
