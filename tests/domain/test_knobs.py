"""The table of knobs: every value reads back, everything else is refused by name."""

from __future__ import annotations

import dataclasses

import pytest

from gputune_tui.domain.knobs import KNOBS, KnobValue, knob_named, read_assignments, read_value, value_text
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.errors import ExitCode, UsageError


def test_table_and_settings_hold_the_same_knobs() -> None:
    assert [knob.name for knob in KNOBS] == [field.name for field in dataclasses.fields(TrainSettings)]


@pytest.mark.parametrize("name", [knob.name for knob in KNOBS if knob.baseline is not None])
def test_baseline_is_the_settings_default_and_reads_back(name: str) -> None:
    baseline = knob_named(name).baseline
    assert getattr(TrainSettings(), name) == baseline
    assert read_value(name, value_text(baseline)) == baseline


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("precision", " bf16 ", "bf16"),
        ("micro_batch_size", "8", 8),
        ("activation_checkpointing", "every:2", "every:2"),
        ("activation_checkpointing", "segments:12", "segments:12"),
        ("pin_memory", "true", True),
        ("prefetch_factor", "null", None),
        ("prefetch_factor", "4", 4),
        ("num_workers", "0", 0),
        ("python", "/opt/env/bin/python", "/opt/env/bin/python"),
        ("python", "null", None),
    ],
)
def test_values_are_read(name: str, text: str, value: KnobValue) -> None:
    found = read_value(name, text)
    assert found == value
    assert type(found) is type(value)
    assert read_value(name, value_text(found)) == found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("precision", "fp64"),
        ("precision", "BF16"),
        ("micro_batch_size", "0"),
        ("micro_batch_size", "-1"),
        ("micro_batch_size", "4.0"),
        ("micro_batch_size", "1e3"),
        ("micro_batch_size", "10000000000"),
        ("activation_checkpointing", "every:0"),
        ("activation_checkpointing", "every:"),
        ("activation_checkpointing", "segments:-2"),
        ("pin_memory", "True"),
        ("pin_memory", "1"),
        ("prefetch_factor", "0"),
        ("python", ""),
        ("world_size", "0"),
        ("strategy", "fsdp"),
        ("data_staging", "shm"),
    ],
)
def test_impossible_values_are_refused_with_what_is_possible(name: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_value(name, text)
    assert name in str(caught.value)
    assert knob_named(name).values in str(caught.value)
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_misspelt_knob_is_offered_its_neighbour() -> None:
    with pytest.raises(UsageError, match="unknown knob 'precison'; did you mean 'precision'"):
        knob_named("precison")
    with pytest.raises(UsageError, match="unknown knob 'zzz'; knobs are: precision"):
        read_value("zzz", "1")


def test_assignments() -> None:
    assert read_assignments(" precision=bf16, num_workers=2 ,") == {"precision": "bf16", "num_workers": 2}
    assert read_assignments("") == {}
    assert read_assignments("python=/a=b") == {"python": "/a=b"}


@pytest.mark.parametrize(
    ("text", "words"),
    [("precision", "not of the form"), ("precision=fp32,precision=bf16", "given twice"), ("precisio=fp32", "unknown")],
)
def test_bad_assignments_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_assignments(text)
