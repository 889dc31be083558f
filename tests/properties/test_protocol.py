"""The event protocol: every event survives its line, and no bytes at all break the reader."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.domain import protocol
from gputune_tui.domain.data_reads import DataReads
from gputune_tui.domain.protocol import Event, decode, decode_order, encode, encode_order
from gputune_tui.domain.trial import Block, FailureReason, GuardRecord, MemoryPeaks, StepBreakdown
from gputune_tui.errors import ProtocolError
from gputune_tui.trial.observations import EventReader

TEXT = st.text(max_size=40)
COUNT = st.integers(0, 2**53)
SECONDS = st.floats(0, 1e9)
MAYBE_BYTES = st.none() | st.integers(0, 2**63)
MAYBE_SECONDS = st.none() | SECONDS
PEAKS = st.builds(MemoryPeaks, *[MAYBE_BYTES] * 4, COUNT | st.none())
BREAKDOWN = st.builds(StepBreakdown, *[MAYBE_SECONDS] * 7, SECONDS)
FLOATS = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4).map(tuple)
GUARD = st.builds(GuardRecord, FLOATS, FLOATS, COUNT, COUNT, st.none() | st.booleans())
BLOCK = st.builds(Block, COUNT, COUNT, SECONDS, MAYBE_SECONDS, COUNT | st.none())
DATA = st.builds(
    DataReads, COUNT, MAYBE_BYTES, COUNT, MAYBE_BYTES, MAYBE_BYTES, MAYBE_BYTES, st.booleans(), st.tuples(TEXT, TEXT)
)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(protocol.Hello, COUNT, TEXT, st.none() | TEXT),
    st.builds(protocol.Inspected, TEXT, TEXT, st.none() | TEXT, st.none() | TEXT, st.none() | TEXT, TEXT, TEXT, COUNT),
    st.builds(protocol.Phase, TEXT, TEXT),
    st.builds(protocol.Warmup, COUNT, SECONDS, st.booleans()),
    st.builds(protocol.BlockDone, BLOCK, st.lists(SECONDS, max_size=4).map(tuple), COUNT),
    st.builds(protocol.Memory, PEAKS, MAYBE_BYTES),
    st.builds(protocol.Guard, GUARD),
    st.builds(protocol.DataRead, DATA),
    st.builds(protocol.Note, TEXT),
    st.builds(protocol.Done, st.none() | BREAKDOWN),
    st.builds(protocol.Error, st.sampled_from(FailureReason), TEXT, st.booleans()),
    st.builds(protocol.Stopped, TEXT, TEXT),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(EVENTS)
def test_an_event_survives_its_line(event: Event) -> None:
    line = encode(event)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert line.isascii()
    assert decode(line) == event


@given(st.lists(EVENTS, max_size=6), st.lists(st.integers(0, 400), max_size=6))
def test_a_reader_joins_any_pieces(events: list[Event], cuts: list[int]) -> None:
    data = b"".join(map(encode, events))
    reader, found, at = EventReader(), list[Event](), 0
    for cut in [*sorted(cuts), len(data)]:
        found += reader.feed(data[at:cut])
        at = max(at, cut)
    assert found == events
    assert reader.bad_lines == 0


@given(EVENTS, st.binary(max_size=60).filter(lambda data: data.strip() != b""))
def test_foreign_bytes_cost_only_their_own_line(event: Event, noise: bytes) -> None:
    reader = EventReader()
    found = reader.feed(noise + b"\n" + encode(event))
    assert found[-1:] == [event]
    assert reader.bad_lines + len(found) == noise.count(b"\n") + 2


@given(st.binary(max_size=200))
def test_bytes_are_an_event_or_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


@given(st.sampled_from(["hello", "phase", "block", "memory", "guard", "note", "done", "error", "x"]), JSON, TEXT)
def test_json_of_any_shape_is_an_event_or_refused(name: str, value: object, key: str) -> None:
    for data in (value, {"v": 1, "event": name, key: value}, {"v": 1, "event": value}, {"v": value, "event": name}):
        with contextlib.suppress(ProtocolError):
            assert encode(decode(json.dumps(data).encode()))


def test_other_versions_and_events_are_refused() -> None:
    for line in (b'{"v":2,"event":"done"}', b'{"event":"done"}', b'{"v":1}', b'{"v":1,"event":["done"]}'):
        with pytest.raises(ProtocolError):
            decode(line)
    assert decode(b'{"v":1,"event":"done"}') == protocol.Done()


def test_deep_or_endless_lines_are_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(b"[" * 100_000)
    with pytest.raises(ProtocolError, match="is not an event"):
        decode(b'{"v":1,"event":"note","text":"' + b"a" * protocol.MAX_LINE_BYTES + b'"}')
    reader = EventReader()
    for _ in range(20):
        assert reader.feed(b"a" * (protocol.MAX_LINE_BYTES // 8)) == []
    assert reader.bad_lines >= 1
    assert reader.feed(b"\n" + encode(protocol.Note("still here"))) == [protocol.Note("still here")]


def test_orders_survive_and_nothing_else_is_one() -> None:
    for order in (protocol.RunBlock(), protocol.Finish()):
        assert decode_order(encode_order(order)) == order
    for line in (b"", b"{}", b"block\n", b'{"v":1,"order":"stop"}', b'{"v":2,"order":"block"}', b"[1]", b"\xff\xfe"):
        with pytest.raises(ProtocolError):
            decode_order(line)
