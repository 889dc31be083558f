"""Scripts that were looked at: their own settings as the baseline, what is set in them, what is refused, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.domain.job import ScriptOrder
from gputune_tui.domain.knobs import KnobValue
from gputune_tui.domain.script import INJECTED_KNOBS, LoaderFacts, ScriptFacts
from gputune_tui.domain.script_order import script_order
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import resolve
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.template import check_flags, fill_placeholders, hash_command, read_flags, told_knobs
from gputune_tui.engine.commands import StudyConfig
from gputune_tui.engine.defaults import script_space
from gputune_tui.engine.detection import check_batch, told_settings
from gputune_tui.engine.script_text import script_lines
from gputune_tui.errors import UsageError
from gputune_tui.export.registry import renderer_named
from tests.export.make import report_on

LOADER = LoaderFacts("train.py:7", "site", num_workers=2, prefetch_factor=4, persistent_workers=True)
FACTS = ScriptFacts(16, world_size=2, loader=LOADER, precision="bf16", model="Net", optimizer="SGD")
PLAIN = WorkloadRef("c", command=("python", "train.py"))


def own(**changes: KnobValue) -> TrainSettings:
    settings = resolve(changes, FACTS.knobs(), FACTS.samples_per_step, "cpu")
    assert settings is not None
    return settings


def test_a_scripts_own_settings_inject_nothing() -> None:
    settings = own()
    assert (settings.micro_batch_size, settings.world_size, settings.samples_per_step) == (16, 2, 32)
    assert (settings.num_workers, settings.prefetch_factor, settings.precision) == (2, 4, "bf16")
    assert script_order(PLAIN, FACTS, settings, "cpu") == ScriptOrder((), "site", "loader")


@pytest.mark.parametrize(
    ("changes", "injected"),
    [
        ({"num_workers": 0}, {"num_workers", "prefetch_factor", "persistent_workers"}),
        ({"micro_batch_size": 4}, {"micro_batch_size", "accumulation_steps"}),
        ({"precision": "fp32"}, {"precision"}),
        ({"activation_checkpointing": "full", "compile": "default"}, {"activation_checkpointing", "compile"}),
    ],
)
def test_what_differs_is_injected(changes: dict[str, KnobValue], injected: set[str]) -> None:
    assert set(script_order(PLAIN, FACTS, own(**changes), "cpu").injected) == injected


def test_what_the_command_is_told_is_not_injected() -> None:
    told = replace(PLAIN, command=("train", "{micro_batch_size}"), flags={"precision": {"fp32": "", "bf16": "--amp"}})
    order = script_order(told, FACTS, own(micro_batch_size=4, precision="fp32"), "cpu")
    assert order.injected == ("accumulation_steps",)


def test_refusals_name_the_knob_and_the_reason() -> None:
    refusing = replace(FACTS, refused={"accumulation_steps": "it accumulates by itself", "compile": "it compiles"})
    for changes, words in (
        ({"micro_batch_size": 4}, "micro_batch_size cannot be set .* it accumulates by itself"),
        ({"compile": "default"}, "compile cannot be set .* it compiles"),
        ({"micro_batch_size": 32, "world_size": 1}, "(world_size|micro_batch_size) cannot be set"),
    ):
        with pytest.raises(UsageError, match=words):
            script_order(PLAIN, refusing, own(**changes), "cpu")
    assert script_order(PLAIN, refusing, own(), "cpu").injected == ()


def test_declared_samples_are_not_counted() -> None:
    assert script_order(replace(PLAIN, samples_per_step=32), FACTS, own(), "cpu").counted_by is None


@given(st.sampled_from(INJECTED_KNOBS), st.booleans())
def test_a_refused_knob_is_in_no_default_space(refused: str, told: bool) -> None:
    knob = "accumulation_steps" if refused == "micro_batch_size" else refused
    space = script_space("cpu", 4.0, replace(FACTS, refused={knob: "no"}), {refused} if told else ())
    if not told:
        assert refused not in space.values
    for name, values in space.values.items():
        if name in FACTS.knobs():
            assert values[0] == FACTS.knobs()[name]


def test_without_any_knob_there_is_no_default_space() -> None:
    with pytest.raises(UsageError, match="no knob of the default space"):
        script_space("cpu", 4.0, replace(FACTS, refused=dict.fromkeys(INJECTED_KNOBS, "no")), ())


def test_another_batch_than_said_is_refused() -> None:
    assert check_batch(StudyConfig(PLAIN), FACTS, 32) is FACTS
    with pytest.raises(UsageError, match="trains on 32 samples a step, not on the --global-batch of 64"):
        check_batch(StudyConfig(PLAIN), FACTS, 64)
    declared = StudyConfig(replace(PLAIN, samples_per_step=1024))
    found = check_batch(declared, FACTS, 1024)
    assert (found.micro_batch_size, found.samples_per_step) == (512, 1024)
    assert found.refusal("micro_batch_size") is not None
    with pytest.raises(UsageError, match="no multiple"):
        check_batch(declared, FACTS, 1023)


def test_a_command_is_looked_at_with_the_baseline_in_its_placeholders() -> None:
    told = StudyConfig(WorkloadRef("c", command=("t", "{micro_batch_size}")), global_batch_size=8)
    assert told_settings(told, "cpu").micro_batch_size == 8
    named = replace(told, global_batch_size=None, baseline={"micro_batch_size": 4, "accumulation_steps": 2})
    assert told_settings(named, "cpu").samples_per_step == 8
    with pytest.raises(UsageError, match="say --global-batch"):
        told_settings(replace(told, global_batch_size=None), "cpu")


def test_facts_in_words() -> None:
    refused = {"compile": "it compiles", "precision": "no model was seen", "channels_last": "no model was seen"}
    lines = list(script_lines(replace(FACTS, refused=refused, blocks="2 x Block", remarks=("forgotten",))))
    text = "\n".join(lines)
    for words in ("Net", "SGD", "16 x accumulation_steps 1 x 2 ranks", "train.py:7", "num_workers=2", "2 x Block"):
        assert words in text
    assert "precision, channels_last: no model was seen" in text
    assert lines[-1] == "forgotten"
    by_model = "\n".join(script_lines(replace(FACTS, loader=None, counted_by="model", framework="Lightning")))
    assert "no DataLoader feeds it" in by_model
    assert "in a loop of Lightning" in by_model


FLAGS = ("precision:bf16=--amp --dtype bf16,fp32=", "num_workers:0=-j 0,2=-j 2")


def test_flags_are_words_where_the_placeholder_stands_or_at_the_end() -> None:
    workload = WorkloadRef("c", command=("train", "{precision}", "x{precision}y"), flags=read_flags(FLAGS))
    settings = TrainSettings(precision="bf16", num_workers=2)
    assert fill_placeholders(workload, settings, None) == [
        "train", "--amp", "--dtype", "bf16", "x--amp --dtype bf16y", "-j", "2"
    ]  # fmt: skip
    assert fill_placeholders(workload, replace(settings, precision="fp32"), None) == ["train", "xy", "-j", "2"]
    assert told_knobs(workload) == {"precision", "num_workers"}
    check_flags(workload, settings)
    with pytest.raises(UsageError, match="num_workers=4"):
        check_flags(workload, replace(settings, num_workers=4))


@pytest.mark.parametrize(
    "text", ["precision", "precision:", "precision:bf16", "precision:fp8=--x", "x:1=2", "precision:fp32='"]
)
def test_flags_that_cannot_be_are_said(text: str) -> None:
    with pytest.raises(UsageError):
        read_flags((text,))
    with pytest.raises(UsageError, match="twice"):
        read_flags(FLAGS[:1] * 2)


def test_a_trial_has_a_folder_for_what_it_writes() -> None:
    workload = WorkloadRef("c", command=("train", "--out={scratch}"))
    assert fill_placeholders(workload, TrainSettings(), None, "/t") == ["train", "--out=/t"]


def test_a_commands_hash_is_of_its_words_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("1")
    first = hash_command(PLAIN.command)
    assert hash_command(("python", "train.py", "-x")) != first
    (tmp_path / "train.py").write_text("2")
    assert hash_command(PLAIN.command) != first


@pytest.mark.parametrize("target", ["torchrun", "env"])
def test_a_file_that_cannot_set_a_knob_in_the_script_says_so(target: str) -> None:
    report = replace(report_on("cpu", num_workers=2), workload=PLAIN, script=ScriptOrder(("num_workers",)))
    rendered = renderer_named(target)(report)
    [remark] = [text for text in rendered.remarks if "gputune-tui run" in text]
    assert "num_workers=2 was set in the script from outside" in remark
    assert "num_workers=2 was set" in rendered.text
    plain = renderer_named(target)(replace(report, script=ScriptOrder()))
    assert not any("gputune-tui run" in text for text in plain.remarks)
