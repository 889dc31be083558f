"""A bug of ours ends the screen without a traceback on it; whoever ran the screen is given the exception."""

from __future__ import annotations

import pytest

from gputune_tui.tui.app import GputuneApp

from .scripted import Driven, drive


def test_a_bug_is_handed_on_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    apps: list[GputuneApp] = []

    async def steps(screen: Driven) -> None:
        apps.append(screen.app)

        def bug() -> None:
            raise LookupError("a bug of ours")

        screen.app.call_later(bug)
        await screen.until(lambda: apps[0].failure is not None)

    with pytest.raises(LookupError, match="a bug of ours"):
        drive(steps)
    assert isinstance(apps[0].failure, LookupError)
    captured = capsys.readouterr()
    assert "LookupError" not in captured.err + captured.out
