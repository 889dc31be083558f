"""Recordings: what was taken comes back, at its pace and again; damaged ones are one sentence."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from gputune_tui.domain.telemetry import NodeSnapshot, SamplerSettings
from gputune_tui.errors import EnvironmentProblem, ProtocolError, UsageError
from gputune_tui.telemetry.document import node_document
from gputune_tui.telemetry.recording import Recorder, read_recording
from gputune_tui.telemetry.replay import LAST_SHOWN_S, ReplayedNode
from gputune_tui.telemetry.simulated import simulated_snapshots
from gputune_tui.telemetry.wire import decode, encode
from tests.telemetry.snapshots import node


def recorded(path: Path, *snapshots: NodeSnapshot) -> Path:
    recorder = Recorder(path)
    for snapshot in snapshots:
        recorder.take(snapshot)
    recorder.close()
    return path


def test_what_was_taken_comes_back(tmp_path: Path) -> None:
    snapshots = list(islice(simulated_snapshots(3, gpus=2), 5))
    assert list(read_recording(recorded(tmp_path / "r", *snapshots))) == snapshots


def test_a_recording_is_never_written_over(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r", node())
    with pytest.raises(UsageError, match="already there"):
        Recorder(path)
    with pytest.raises(UsageError, match="cannot record"):
        Recorder(tmp_path / "nowhere" / "r")


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r", node(1.0), node(2.0))
    path.write_bytes(path.read_bytes()[:-20])
    assert [snapshot.time_s for snapshot in read_recording(path)] == [1.0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no recording"),
        ("{}\n", "no recording"),
        ("[" * 100_000 + "\n", "no recording"),
        ('{"kind":"gputune-tui node recording","schema":99}\n', "schema 99"),
        ('{"kind":"gputune-tui node recording","schema":1}\n{"time_s":1}\n', "line 2"),
    ],
    ids=["empty", "another object", "nested", "another schema", "damaged"],
)
def test_what_is_no_recording_is_one_sentence(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "r"
    path.write_text(content)
    with pytest.raises(UsageError, match=words):
        list(read_recording(path))


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        list(read_recording(tmp_path / "none"))
    with pytest.raises(UsageError, match="no snapshot"):
        ReplayedNode(recorded(tmp_path / "empty"))


def test_a_full_disk_ends_the_recording_with_a_sentence() -> None:
    recorder = Recorder.__new__(Recorder)
    recorder._path = Path("/dev/full")
    recorder._file = Path("/dev/full").open("w")  # noqa: SIM115  # the recorder closes it
    with pytest.raises(EnvironmentProblem, match="has ended"):
        recorder.take(node())
    recorder.take(node())
    recorder.close()


def test_it_is_played_at_its_pace_and_begins_again(tmp_path: Path) -> None:
    now = [50.0]
    played = ReplayedNode(recorded(tmp_path / "r", node(100.0), node(101.0), node(103.0)), lambda: now[0])
    seen = []
    for _ in range(6):
        found = played.read(SamplerSettings())
        assert found.recorded
        seen.append(found.time_s)
        now[0] += 1.0
    assert seen == [100.0, 101.0, 101.0, 103.0, 100.0, 101.0]
    assert LAST_SHOWN_S == 1.0


def test_a_damaged_line_ends_it_there(tmp_path: Path) -> None:
    path = recorded(tmp_path / "r", node(100.0))
    path.write_text(path.read_text() + "damaged\n")
    now = [0.0]
    played = ReplayedNode(path, lambda: now[0])
    for _ in range(5):
        assert played.read(SamplerSettings()).time_s == 100.0
        now[0] += 1.0


def test_the_pipe_carries_a_snapshot_and_refuses_all_else() -> None:
    for snapshot in islice(simulated_snapshots(0, gpus=3), 3):
        assert decode(encode(snapshot)) == snapshot
    for line in (b"", b"{}", b"[]", b"1", b"[" * 100_000, b'{"time_s":1}', encode(node())[:-5], b'{"host":1}'):
        with pytest.raises(ProtocolError):
            decode(line)


def test_the_document_has_base_units_and_null() -> None:
    (snapshot,) = islice(simulated_snapshots(0, gpus=1), 1)
    document = json.loads(json.dumps(node_document(snapshot), allow_nan=False))
    names = "schema time host driver cuda problem simulated recorded gpus processes process_note cpu"
    assert list(document) == names.split()
    gpu = document["gpus"][0]
    wanted = "uuid index name state util_fraction memory_used_bytes memory_total_bytes memory_reserved_bytes power_w"
    wanted += " power_limit_w temperature_c sm_clock_mhz throttle mig"
    assert set(wanted.split()) <= set(gpu)
    assert gpu["fan_fraction"] is None
    assert document["schema"] == 1
    assert document["processes"][0]["gpu_index"] == 0
    assert node_document(node(gpus=0), "why")["problem"] == "why"
