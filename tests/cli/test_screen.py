"""What the options of the screen's command come to."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from click.testing import CliRunner

from gputune_tui.cli.main import gputune
from gputune_tui.engine.commands import Search, StudyConfig
from gputune_tui.tui import app


def test_the_search_that_u_starts_is_the_one_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[Search] = []

    def run_screen(config: StudyConfig | None, search: Search, options: app.ScreenOptions) -> int:
        shown.append(search)
        return 0

    monkeypatch.setattr(app, "run_screen", run_screen)
    given = ["lm", "--device", "cpu", "--study", str(tmp_path), "--space", "precision=fp32,bf16"]
    monkeypatch.setattr(gc, "disable", lambda: None)
    for extra in ([], ["--race"], ["--sampler", "random"]):
        done = CliRunner().invoke(gputune, [*given, *extra], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    space = "precision=fp32,bf16"
    assert shown == [Search(space), Search(space, race=True), Search(space, "random")]
