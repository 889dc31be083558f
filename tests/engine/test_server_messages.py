"""The lines between a screen and its engine: exact round trips, and nothing that a stranger's line can break."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.domain.job import MeasurePlan
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import Block, Failure, FailureReason, Launch, MemoryPeaks, Trial, TrialState
from gputune_tui.engine.commands import Compare, MeasureAgain, RunSettings, RunTrial, Search, StudyConfig
from gputune_tui.engine.events import (
    EngineEvent,
    Exported,
    Previewed,
    Problem,
    QueueChanged,
    StudyTrials,
    TaskEnded,
    TaskStarted,
    TrialFinished,
    TrialProgress,
    decode_event,
    encode_event,
)
from gputune_tui.engine.requests import (
    Cancel,
    Do,
    Export,
    Open,
    Preview,
    Request,
    Share,
    Shutdown,
    decode_request,
    encode_request,
)
from gputune_tui.engine.wire import LineReader
from gputune_tui.errors import ProtocolError

TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
"""Lone surrogates included: names of files hold them."""
SECONDS = st.none() | st.floats(0, 1e6)
KNOBS = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers(-9, 999) | TEXT, max_size=3)
SETTINGS = st.builds(
    TrainSettings, precision=TEXT, micro_batch_size=st.integers(1, 999), prefetch_factor=st.none() | st.integers(1, 9)
)
CONFIGS = st.builds(
    StudyConfig,
    st.builds(WorkloadRef, TEXT, st.dictionaries(TEXT, TEXT, max_size=2), st.lists(TEXT, max_size=2).map(tuple)),
    device=st.none() | TEXT,
    baseline=KNOBS,
    study=st.none() | TEXT,
    trial_timeout_s=SECONDS,
    plan=st.builds(MeasurePlan, blocks=st.integers(1, 9)),
)
REQUESTS: st.SearchStrategy[Request] = st.one_of(
    st.builds(Open, CONFIGS),
    st.builds(Do, st.builds(Search, st.none() | TEXT, TEXT, SECONDS)),
    st.builds(Do, st.builds(RunTrial, KNOBS, st.integers(1, 9))),
    st.builds(Do, st.builds(RunSettings, SETTINGS, st.integers(1, 9))),
    st.builds(Do, st.builds(Compare, KNOBS, KNOBS, st.floats(0, 1), SECONDS)),
    st.builds(Export, st.none() | st.integers(0, 99), TEXT, TEXT, st.booleans()),
    st.builds(Preview, st.none() | st.integers(0, 99), TEXT),
    st.builds(Do, st.builds(MeasureAgain, st.lists(st.integers(0, 999), max_size=3).map(tuple))),
    st.just(Share()),
    st.just(Cancel()),
    st.just(Shutdown()),
)
LAUNCHES = st.builds(
    Launch,
    st.lists(st.builds(Block, st.integers(0, 99), st.integers(0, 9), st.floats(0, 99)), max_size=2).map(tuple),
    st.lists(st.floats(0, 99), max_size=3).map(tuple),
    st.integers(0, 99),
    st.builds(MemoryPeaks, st.none() | st.integers(0, 2**63)),
)
TRIALS = st.builds(
    Trial,
    st.integers(0, 999),
    SETTINGS,
    st.sampled_from(TrialState),
    st.none() | st.builds(Failure, st.sampled_from(FailureReason), TEXT),
    st.lists(LAUNCHES, max_size=2).map(tuple),
)
EVENTS: st.SearchStrategy[EngineEvent] = st.one_of(
    st.builds(StudyTrials, st.lists(TRIALS, max_size=2).map(tuple), SETTINGS, st.booleans(), st.booleans()),
    st.builds(TaskStarted, TEXT),
    st.builds(TaskEnded, TEXT, st.none() | TEXT, st.integers(0, 143), st.booleans()),
    st.builds(Exported, TEXT, st.integers(0, 999), st.lists(TEXT, max_size=2).map(tuple)),
    st.builds(Previewed, st.none() | st.integers(0, 999), TEXT, TEXT, st.none() | TEXT),
    st.builds(QueueChanged, st.lists(TEXT, max_size=3).map(tuple)),
    st.builds(Problem, TEXT),
    st.builds(TrialProgress, st.integers(0, 99), TEXT, TEXT, st.integers(0, 9), st.integers(0, 9), SECONDS),
    st.builds(TrialFinished, TRIALS, st.integers(1, 9), st.none() | st.integers(1, 9), SECONDS),
)


@given(REQUESTS)
def test_a_request_survives_the_wire(request: Request) -> None:
    line = encode_request(request)
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert json.loads(line)["v"] == 1
    assert decode_request(line[:-1]) == request


@given(EVENTS)
def test_an_event_survives_the_wire(event: EngineEvent) -> None:
    line = encode_event(event)
    assert line.count(b"\n") == 1
    assert json.loads(line)["v"] == 1
    assert decode_event(line[:-1]) == event


def test_every_request_is_covered() -> None:
    assert {cls.__name__ for cls in get_args(Request)} == {
        "Open", "Do", "Share", "Export", "Preview", "Cancel", "Shutdown",
    }  # fmt: skip


@given(st.binary(max_size=80))
def test_other_lines_are_refused(line: bytes) -> None:
    for decode in (decode_request, decode_event):
        with pytest.raises(ProtocolError):
            decode(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"v":1,"kind":"Do"}', "an object with a kind"),
        (b'{"v":1,"kind":"Do","command":{"kind":"Open"}}', "unknown message 'Open'"),
        (b'{"v":1,"kind":"Do","command":{"kind":"RunTrial","launches":"many"}}', "RunTrial.launches"),
        (b'{"v":1,"kind":"Cancel","why":1}', "unknown field 'why'"),
        (b'{"v":2,"kind":"Cancel"}', "version 1"),
        (b'{"kind":"Cancel"}', "version 1"),
        (b"[1]", "version 1"),
    ],
)
def test_a_wrong_request_is_refused_by_name(line: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        decode_request(line)


@given(st.lists(st.binary(max_size=40).map(lambda data: data.replace(b"\n", b" ")), max_size=8), st.data())
def test_lines_come_whole_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    reader = LineReader(limit_bytes=20)
    heard: list[bytes] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        heard += reader.feed(stream[:size])
        stream = stream[size:]
    assert heard == [line for line in lines if len(line) <= 20]
    assert reader.too_long == len(lines) - len(heard)
