"""Choosing a format with a look at the file, by keys: what is asked of the engine, and what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputune_tui.engine.events import Exported, Previewed
from gputune_tui.engine.requests import Export, Preview
from gputune_tui.export.formats import FORMATS
from tests.ranking.make import complete, launch
from tests.tui.scripted import WIDE, Driven, drive

TRIALS = [complete(1, launch(100.0, 101.0))]
SIZES = ((80, 24), WIDE, (60, 16))


@pytest.mark.parametrize("size", SIZES)
def test_each_format_is_previewed_and_names_its_file(
    size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def steps(it: Driven) -> None:
        await it.press("e")
        for found in FORMATS:
            assert it.asked() == [Preview(1, found.name)]
            await it.say(Previewed(1, found.name, f"# head of {found.name}\nkey: 1\n"))
            assert f"# head of {found.name}" in it.text()
            assert found.file_name in it.text()
            assert found.help.split(" for ")[0][:30] in " ".join(it.text().split())
            await it.press("down")
        await it.press("up", "up")
        assert it.asked() == [Preview(1, "python"), Preview(1, "env")]
        await it.say(Previewed(1, "python", "too late"), Previewed(1, "env", "GPUTUNE_PRECISION=bf16"))
        assert "GPUTUNE_PRECISION=bf16" in it.text()
        assert "too late" not in it.text()
        await it.press("enter")
        assert it.asked() == [Export(1, "env", "gputune-env.env", False)]
        assert not it.in_dialog()
        await it.say(Previewed(1, "env", "after the dialog"))
        await it.say(Exported(str(tmp_path / "gputune-env.env"), 1, ("what it cannot hold",)))
        assert it.last_said() == "what it cannot hold"

    drive(steps, size, trials=TRIALS)


def test_a_name_of_the_users_own_stays_and_a_refusal_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def steps(it: Driven) -> None:
        await it.press("e")
        await it.type("mine.yaml")
        await it.press("down", "down")
        assert "mine.yaml" in it.text()
        assert it.asked()[-1] == Preview(1, "accelerate")
        await it.say(Previewed(1, "accelerate", "", "a command is a training script already"))
        assert "a command is a training script already" in it.text()
        await it.press("enter")
        assert it.asked() == [Export(1, "accelerate", "mine.yaml", False)]

    drive(steps, WIDE, trials=TRIALS)


def test_a_long_preview_scrolls_while_the_name_has_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    async def steps(it: Driven) -> None:
        await it.press("e")
        await it.say(Previewed(1, "yaml", "".join(f"line {number}\n" for number in range(200))))
        assert "line 0" in it.text()
        assert "line 199" not in it.text()
        await it.press(*["pagedown"] * 25)
        assert "line 199" in it.text()
        await it.press("down")
        await it.say(Previewed(1, "json", "{}"))
        assert "{}" in it.text()

    drive(steps, WIDE, trials=TRIALS)
