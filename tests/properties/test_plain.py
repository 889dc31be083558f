"""The strict codec on generated values: exact round trips through JSON, and refusals that name a field."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.domain.job import Job, MeasurePlan
from gputune_tui.domain.plain import from_plain, to_plain
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import Block, Failure, FailureReason, Launch, MemoryPeaks, Trial, TrialState
from gputune_tui.errors import ProtocolError

TEXT = st.text(max_size=20)
BYTES = st.none() | st.integers(0, 2**63)
SETTINGS = st.builds(
    TrainSettings,
    precision=st.sampled_from(["fp32", "bf16"]),
    micro_batch_size=st.integers(1, 512),
    prefetch_factor=st.none() | st.integers(1, 9),
    pin_memory=st.booleans(),
)
LAUNCH = st.builds(
    Launch,
    st.lists(st.builds(Block, st.integers(0, 999), st.integers(0, 99), st.floats(0, 99)), max_size=2).map(tuple),
    st.lists(st.floats(0, 99), max_size=2).map(tuple),
    st.integers(0, 99),
    st.builds(MemoryPeaks, BYTES, BYTES, BYTES, BYTES, BYTES),
    notes=st.lists(TEXT, max_size=2).map(tuple),
)
TRIALS = st.builds(
    Trial,
    st.integers(0, 999),
    SETTINGS,
    st.sampled_from(TrialState),
    st.none() | st.builds(Failure, st.sampled_from(FailureReason), TEXT, st.none() | TEXT, st.booleans()),
    st.lists(LAUNCH, max_size=2).map(tuple),
)
JOBS = st.builds(
    Job,
    st.sampled_from(["trial", "inspect"]),
    st.builds(WorkloadRef, TEXT, st.dictionaries(TEXT, TEXT, max_size=2), st.lists(TEXT, max_size=3).map(tuple)),
    settings=st.none() | SETTINGS,
    budget_bytes=BYTES,
    plan=st.builds(MeasurePlan, blocks=st.integers(1, 99), block_s=st.floats(0.001, 9)),
)


@given(TRIALS)
def test_a_trial_survives_json(trial: Trial) -> None:
    assert from_plain(Trial, json.loads(json.dumps(to_plain(trial)))) == trial


@given(JOBS)
def test_a_job_survives_json(job: Job) -> None:
    assert from_plain(Job, json.loads(json.dumps(to_plain(job)))) == job


@given(TRIALS, st.data())
def test_a_damaged_record_is_refused_by_its_field(trial: Trial, data: st.DataObject) -> None:
    plain = to_plain(trial)
    name = data.draw(st.sampled_from(sorted(plain)))
    plain[name] = {"not": ["any", "field's", "type"]}
    with pytest.raises(ProtocolError, match=f"Trial.{name}"):
        from_plain(Trial, plain)
