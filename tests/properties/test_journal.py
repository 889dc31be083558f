"""A journal holds whatever is appended, cut anywhere, and two of them merge without loss."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gputune_tui.domain.data_reads import DataReads
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import StudyIdentity, WorkloadRef
from gputune_tui.domain.trial import (
    Block,
    Failure,
    FailureReason,
    GuardRecord,
    Launch,
    MemoryPeaks,
    PhasePeak,
    StepBreakdown,
    Trial,
    TrialState,
)
from gputune_tui.errors import StudyError
from gputune_tui.store.journal import read_journal
from gputune_tui.store.reading import read_study
from gputune_tui.store.records import (
    GenerationOpened,
    OverheadMeasured,
    Record,
    TrialBegan,
    TrialEnded,
    WriterStarted,
    decode_record,
    encode_record,
)
from tests.store.samples import ENVIRONMENT, IDENTITY, dead_writer, opened

TEXT = st.text(max_size=12)
WORDS = st.one_of(TEXT, st.just("a\nb"), st.just("\x00"), st.just("\udcff"), st.just("模型 🚀"))
COUNT = st.integers(0, 2**53)
NUMBER = st.floats()
MAYBE_COUNT = st.one_of(st.none(), COUNT)
MAYBE_NUMBER = st.one_of(st.none(), NUMBER)
SETTINGS = st.builds(
    TrainSettings,
    precision=st.sampled_from(["fp32", "bf16"]),
    micro_batch_size=st.integers(1, 9),
    prefetch_factor=st.one_of(st.none(), st.integers(1, 4)),
    python=st.one_of(st.none(), WORDS),
)
LAUNCHES = st.builds(
    Launch,
    blocks=st.lists(st.builds(Block, COUNT, COUNT, NUMBER, MAYBE_NUMBER, MAYBE_COUNT), max_size=2).map(tuple),
    step_times_s=st.lists(NUMBER, max_size=3).map(tuple),
    warmup_steps=COUNT,
    memory=st.builds(MemoryPeaks, MAYBE_COUNT, MAYBE_COUNT, MAYBE_COUNT, MAYBE_COUNT, MAYBE_COUNT),
    breakdown=st.one_of(st.none(), st.builds(StepBreakdown, *[MAYBE_NUMBER] * 7, NUMBER)),
    guard=st.one_of(st.none(), st.builds(GuardRecord, st.lists(NUMBER, max_size=2).map(tuple))),
    notes=st.lists(WORDS, max_size=2).map(tuple),
    phase_peaks=st.lists(st.builds(PhasePeak, WORDS, COUNT), max_size=2).map(tuple),
    data=st.one_of(st.none(), st.builds(DataReads, COUNT, MAYBE_COUNT, COUNT, MAYBE_COUNT, MAYBE_COUNT, MAYBE_COUNT)),
)
TRIALS = st.builds(
    Trial,
    id=st.integers(1, 5),
    settings=SETTINGS,
    state=st.sampled_from([TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED]),
    failure=st.one_of(st.none(), st.builds(Failure, st.sampled_from(FailureReason), WORDS, st.none(), st.booleans())),
    launches=st.lists(LAUNCHES, max_size=2).map(tuple),
    budget_bytes=MAYBE_COUNT,
    started_at=st.one_of(st.none(), st.floats(0, 9)),
    elapsed_s=MAYBE_NUMBER,
    host_budget_bytes=MAYBE_COUNT,
)
IDENTITIES = st.builds(
    StudyIdentity,
    workload=st.builds(WorkloadRef, WORDS, st.dictionaries(TEXT, WORDS, max_size=2), st.just(()), MAYBE_COUNT),
    content_hash=WORDS,
    global_batch_size=COUNT,
    environment=st.just(ENVIRONMENT),
    cold=st.booleans(),
)
GENERATION = st.integers(1, 3)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(GenerationOpened, GENERATION, IDENTITIES, st.floats(0, 9)),
    st.builds(OverheadMeasured, GENERATION, COUNT),
    st.builds(TrialBegan, GENERATION, st.integers(1, 5), SETTINGS, MAYBE_COUNT, st.floats(0, 9), MAYBE_COUNT),
    st.builds(TrialEnded, GENERATION, TRIALS),
    st.builds(WriterStarted, WORDS, st.integers(1, 2**22), WORDS, WORDS, st.floats(0, 9)),
)


def as_bytes(records: list[Record]) -> bytes:
    """NaN differs from itself, its line does not."""
    return b"".join(map(encode_record, records))


def a_journal(folder: str, data: bytes, name: str = "a") -> Path:
    journal = Path(folder) / f"journal-{name}.jsonl"
    journal.write_bytes(data)
    return journal


@given(RECORDS)
def test_a_record_is_one_line_and_comes_back(record: Record) -> None:
    line = encode_record(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert encode_record(decode_record(line)) == line


NEWER = ("phase_peaks", "data", "host_budget_bytes", "cold")
"""Fields that studies of the first version do not have."""


def without_newer(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_newer(item) for key, item in value.items() if key not in NEWER}
    return [without_newer(item) for item in value] if isinstance(value, list) else value


@given(RECORDS)
def test_a_record_of_an_older_study_is_read_with_nothing_known_of_the_rest(record: Record) -> None:
    old = without_newer(json.loads(encode_record(record)))
    again = decode_record(json.dumps(old).encode())
    assert without_newer(json.loads(encode_record(again))) == old or "NaN" in json.dumps(old)


@settings(deadline=None)
@given(st.lists(RECORDS, max_size=8))
def test_any_records_come_back_and_merge(records: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found, problems = read_journal(a_journal(folder, as_bytes(records)))
        assert as_bytes(found) == as_bytes(records)
        assert problems == []
        contents = read_study(Path(folder))
    ids = [trial.id for generation in contents.generations for trial in generation.trials]
    assert len(ids) == len(set(ids))


@settings(deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=5), st.data())
def test_a_cut_at_any_byte_loses_the_last_record_at_most(records: list[Record], data: st.DataObject) -> None:
    lines = [encode_record(record) for record in records]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))
    complete = sum(len(b"".join(lines[: i + 1])) <= cut for i in range(len(lines)))
    with tempfile.TemporaryDirectory() as folder:
        journal = a_journal(folder, whole[:cut])
        found, problems = read_journal(journal)
        read_study(Path(folder))
        assert journal.read_bytes() == whole[:cut]
    assert as_bytes(found) == b"".join(lines[:complete])
    assert len(problems) == (cut > len(b"".join(lines[:complete])))


@settings(deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=4), st.binary(max_size=40), st.data())
def test_any_damage_is_skipped_or_one_sentence(records: list[Record], damage: bytes, data: st.DataObject) -> None:
    whole = as_bytes(records)
    place = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 40))
    with tempfile.TemporaryDirectory() as folder:
        a_journal(folder, whole[:place] + damage + whole[place + length :])
        refusal = ""
        try:
            read_study(Path(folder))
        except StudyError as error:
            refusal = str(error)
    assert not refusal or ("journal-a.jsonl:" in refusal and "nothing was changed" in refusal)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=12))
def test_two_writers_merge_without_loss(events: list[tuple[bool, int]]) -> None:
    """Ids may even collide, as after a deletion of the folders that claim them."""
    lines: dict[bool, list[Record]] = {
        writer: [dead_writer(float(writer), 10**8 + writer), opened()] for writer in (False, True)
    }
    for place, (writer, trial_id) in enumerate(events):
        trial = Trial(trial_id, TrainSettings(micro_batch_size=1 + place), TrialState.COMPLETE, started_at=float(place))
        lines[writer] += [TrialBegan(1, trial_id, trial.settings, None, float(place)), TrialEnded(1, trial)]
    with tempfile.TemporaryDirectory() as folder:
        for name, records in lines.items():
            a_journal(folder, as_bytes(records), str(name))
        contents = read_study(Path(folder))
        again = read_study(Path(folder))
    current = contents.generation_of(IDENTITY)
    assert current is not None
    assert sorted(trial.settings.micro_batch_size for trial in current.trials) == list(range(1, len(events) + 1))
    assert len({trial.id for trial in current.trials}) == len(events)
    assert contents == again
