"""Choosing a workload: what a form means, and what is said about one that cannot be read."""

from __future__ import annotations

import pytest

from gputune_tui.domain.builtin import builtin_names
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.engine.commands import StudyConfig
from gputune_tui.engine.requests import Open
from gputune_tui.errors import UsageError
from gputune_tui.tui.screens.open_dialog import FIELDS, read_form
from tests.tui.scripted import CONFIG, Driven, drive

EMPTY = {field.name: "" for field in FIELDS}


def test_a_form_becomes_a_configuration() -> None:
    texts = {
        "workload": " ./train.py:Mine ",
        "options": "size=tiny 'text=two words'",
        "device": "cuda:1",
        "budget": "80%",
        "batch": "64",
        "study": "/studies/mine",
    }
    assert read_form(texts, None) == StudyConfig(
        WorkloadRef("./train.py:Mine", {"size": "tiny", "text": "two words"}),
        "cuda:1",
        "80%",
        global_batch_size=64,
        study="/studies/mine",
    )
    assert read_form({**EMPTY, "workload": "lm"}, None) == StudyConfig(WorkloadRef("lm"))


def test_what_the_form_does_not_ask_for_stays() -> None:
    before = StudyConfig(WorkloadRef("lm"), baseline={"precision": "bf16"}, seed=7, host_budget="4GiB")
    after = read_form({**EMPTY, "workload": "vision"}, before)
    assert after == StudyConfig(WorkloadRef("vision"), baseline={"precision": "bf16"}, seed=7, host_budget="4GiB")
    command = StudyConfig(WorkloadRef("python t.py", {}, ("python", "t.py"), 64))
    assert read_form({field.name: field.read(command) for field in FIELDS}, command) == command


def test_a_configuration_goes_through_the_form_and_back() -> None:
    config = StudyConfig(WorkloadRef("lm", {"data": "a b'c\"d", "x": "1=2"}), "cpu", "20GiB", global_batch_size=16)
    assert read_form({field.name: field.read(config) for field in FIELDS}, config) == config


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"workload": " "}, "no workload"),
        ({"options": "size"}, "key=value"),
        ({"options": "a='b"}, "quotation"),
        ({"options": "a=1 a=2"}, "twice"),
        ({"batch": "0"}, "whole number"),
        ({"batch": "-4"}, "whole number"),
        ({"batch": "1e3"}, "whole number"),
        ({"batch": "²"}, "whole number"),
        ({"batch": "٤٢x"}, "whole number"),
    ],
)
def test_what_cannot_be_read_is_said(changes: dict[str, str], word: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_form({**EMPTY, "workload": "lm", **changes}, None)
    assert word.lower() in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def test_a_command_is_typed_as_on_the_command_line() -> None:
    found = read_form({**EMPTY, "workload": "-- python train.py --name 'a b'", "batch": "8"}, None)
    assert found.workload.command == ("python", "train.py", "--name", "a b")
    assert found.detects
    assert read_form({field.name: field.read(found) for field in FIELDS}, found) == found


@pytest.mark.parametrize(
    ("text", "options", "word"), [("--", "", "nothing follows"), ("-- a 'b", "", "quotation"), ("-- a", "k=v", "-D")]
)
def test_a_command_that_cannot_be_is_said(text: str, options: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        read_form({**EMPTY, "workload": text, "options": options}, None)


def test_the_form_in_the_program() -> None:
    async def steps(it: Driven) -> None:
        for name in builtin_names():
            assert name in it.text()
        first = it.app.focused
        chosen = []
        for _ in builtin_names():
            await it.press("down")
            chosen.append(first.value)  # type: ignore[union-attr]
        assert set(chosen) == set(builtin_names()[1:]) or set(chosen) == set(builtin_names())
        await it.type("lm")
        await it.press("tab")
        await it.type("size")
        await it.press("enter")
        assert it.in_dialog()
        assert "key=value" in it.text()
        await it.type("size=tiny")
        await it.press("tab")
        await it.type("cpu")
        await it.press("shift+tab", "enter")
        assert not it.in_dialog()
        assert it.asked() == [Open(CONFIG)]
        # It is filled with what is open.
        await it.press("w")
        assert "size=tiny" in it.text()
        await it.press("escape")
        assert it.asked() == []

    drive(steps, config=None)
