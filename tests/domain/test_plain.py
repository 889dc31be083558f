"""The strict codec: what it writes it reads back, what it does not know it refuses by the field's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import pytest

from gputune_tui.domain.job import Job
from gputune_tui.domain.plain import from_plain, to_plain
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import Failure, FailureReason, Trial, TrialState
from gputune_tui.errors import ProtocolError


class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    count: int
    share: float = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    colour: Colour = Colour.RED
    maybe: int | None = None
    several: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (0, "")
    words: Mapping[str, str] = field(default_factory=dict)
    flag: bool = False


FULL = Outer("a", Inner(3, 0.25), Colour.BLUE, 7, (Inner(1), Inner(2)), (4, "four"), {"k": "v"}, True)


def test_round_trip_is_exact() -> None:
    plain = to_plain(FULL)
    assert plain["colour"] == "blue"
    assert plain["several"] == [{"count": 1, "share": 0.5}, {"count": 2, "share": 0.5}]
    assert from_plain(Outer, plain) == FULL


def test_missing_fields_take_their_defaults() -> None:
    assert from_plain(Outer, {"name": "a", "inner": {"count": 3}}) == Outer("a", Inner(3))


def test_a_whole_number_may_stand_for_a_real_one_but_stays_a_float() -> None:
    found = from_plain(Inner, {"count": 1, "share": 2})
    assert found.share == 2.0
    assert type(found.share) is float


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 3}, "Outer.name: expected str, got int"),
        ({"inner": None}, "Outer.inner: expected an object, got NoneType"),
        ({"inner": {"count": 1.5}}, "Outer.inner.count: expected int, got float"),
        ({"inner": {"count": True}}, "Outer.inner.count: expected int, got bool"),
        ({"inner": {"count": 1, "share": True}}, "Outer.inner.share: expected float, got bool"),
        ({"inner": {"share": 1.0}}, "Outer.inner: field 'count' is missing"),
        ({"inner": {"count": 1, "size": 2}}, "Outer.inner: unknown field 'size'"),
        ({"colour": "green"}, "Outer.colour: 'green' is not a Colour"),
        ({"maybe": "7"}, "Outer.maybe: expected int, got str"),
        ({"several": "ab"}, "Outer.several: expected a list, got str"),
        ({"several": [{"count": 1}, 5]}, r"Outer.several\[1\]: expected an object, got int"),
        ({"pair": [1]}, "Outer.pair: expected 2 items, got 1"),
        ({"pair": [1, 2]}, r"Outer.pair\[1\]: expected str, got int"),
        ({"words": {"k": 1}}, "Outer.words.k: expected str, got int"),
        ({"words": ["k"]}, "Outer.words: expected an object, got list"),
        ({"flag": 1}, "Outer.flag: expected bool, got int"),
    ],
)
def test_wrong_fields_are_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        from_plain(Outer, to_plain(FULL) | change)


@pytest.mark.parametrize("data", [None, 3, "text", [1], []])
def test_what_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(ProtocolError, match="Outer: expected an object"):
        from_plain(Outer, data)


def test_what_is_not_plain_is_not_written() -> None:
    with pytest.raises(TypeError, match="object is not a plain value"):
        to_plain({"a": object()})


def test_a_job_survives_its_file() -> None:
    job = Job(
        kind="trial",
        workload=WorkloadRef("lm", {"size": "tiny"}, ("python", "a b.py"), 16),
        settings=TrainSettings(precision="bf16", num_workers=2),
        budget_bytes=4 << 30,
    )
    assert from_plain(Job, to_plain(job)) == job


def test_a_failed_trial_survives_its_record() -> None:
    trial = Trial(1, TrainSettings(), TrialState.FAIL, Failure(FailureReason.SHM, "too small", None), elapsed_s=1.5)
    assert from_plain(Trial, to_plain(trial)) == trial
