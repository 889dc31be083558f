"""TrainSettings: one form for all that cannot differ, differences, and strict reading."""

from __future__ import annotations

import dataclasses

import pytest

from gputune_tui.domain.knobs import KNOBS, read_assignments
from gputune_tui.domain.settings import TrainSettings, settings_from_dict
from gputune_tui.errors import UsageError


def test_samples_per_step() -> None:
    assert TrainSettings(micro_batch_size=4, accumulation_steps=3).samples_per_step == 12


def test_without_workers_nothing_is_prefetched_or_kept() -> None:
    grid = [
        TrainSettings(num_workers=0, prefetch_factor=prefetch, persistent_workers=keep, pin_memory=pin)
        for prefetch in (None, 2, 4)
        for keep in (False, True)
        for pin in (False, True)
    ]
    assert {settings.canonical("cpu") for settings in grid} == {TrainSettings()}
    assert len({settings.canonical("cuda") for settings in grid}) == 2


def test_with_workers_prefetch_two_is_what_torch_does_unasked() -> None:
    unasked = TrainSettings(num_workers=2).canonical("cpu")
    assert unasked.prefetch_factor == 2
    assert unasked == TrainSettings(num_workers=2, prefetch_factor=2).canonical("cpu")
    assert unasked != TrainSettings(num_workers=2, prefetch_factor=4).canonical("cpu")
    assert unasked != TrainSettings(num_workers=2, persistent_workers=True).canonical("cpu")


def test_what_only_one_kind_of_device_knows() -> None:
    assert TrainSettings(precision="tf32").canonical("cpu").precision == "fp32"
    assert TrainSettings(precision="tf32").canonical("cuda").precision == "tf32"
    assert TrainSettings(flush_denormal=True).canonical("cuda").flush_denormal is False
    assert TrainSettings(flush_denormal=True).canonical("cpu").flush_denormal is True


@pytest.mark.parametrize("device_kind", ["cpu", "cuda"])
def test_canonical_is_idempotent(device_kind: str) -> None:
    settings = TrainSettings(num_workers=3, pin_memory=True, precision="tf32", flush_denormal=True)
    once = settings.canonical(device_kind)
    assert once.canonical(device_kind) == once


def test_every_knob_is_in_the_dictionary_in_the_tables_order() -> None:
    assert list(TrainSettings().as_dict()) == [knob.name for knob in KNOBS]
    settings = TrainSettings(precision="bf16", num_workers=2, prefetch_factor=4, python="/bin/python3")
    assert settings_from_dict(settings.as_dict()) == settings


def test_difference_and_text() -> None:
    base = TrainSettings(micro_batch_size=8)
    changed = dataclasses.replace(base, precision="bf16", persistent_workers=True)
    assert changed.difference(base) == {"precision": "bf16", "persistent_workers": True}
    assert changed.text(than=base) == "precision=bf16,persistent_workers=true"
    assert base.difference(base) == {}
    assert base.text(than=base) == ""
    assert settings_from_dict(read_assignments(changed.text())) == changed


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"micro_batch_size": "8"}, "wrong type"),
        ({"pin_memory": 1}, "pin_memory"),
        ({"pin_memory": "true"}, "wrong type"),
        ({"num_workers": True}, "num_workers"),
        ({"micro_batch_size": 4.0}, "micro_batch_size=4.0 is not possible"),
        ({"precision": None}, "precision"),
        ({"precision": ["fp32"]}, "precision"),
        ({"colour": "red"}, "unknown knob 'colour'"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        settings_from_dict(values)
