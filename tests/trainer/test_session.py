"""The order of a trial's parts, around a meter that only says what is asked of it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gputune_tui.domain.job import Job
from gputune_tui.domain.protocol import Phase
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trainer.meter import Meter
from gputune_tui.trainer.session import _run_meter
from gputune_tui.trainer.worst_case import WorstCase
from tests.trainer.scripted import Recorder


class ToldMeter:
    """Notes in which phase each of its parts is asked for."""

    def __init__(self, events: Recorder) -> None:
        self._events = events
        self.asked: list[tuple[str, str]] = []

    def __getattr__(self, name: str) -> Any:
        def ask() -> None:
            phases = [event.name for event in self._events.events if isinstance(event, Phase)]
            self.asked.append((name, phases[-1]))

        return ask


class TriedWorstCase:
    """Had something to try, or not."""

    def __init__(self, events: Recorder, has_some: bool) -> None:
        self._events = events
        self._has_some = has_some

    def run(self) -> bool:
        """As `WorstCase.run` does."""
        if self._has_some:
            self._events.phase("evaluation")
        return self._has_some


@pytest.mark.parametrize("has_some", [False, True])
def test_steps_after_the_worst_case_are_ordinary_training_and_lengthen_no_block(has_some: bool) -> None:
    events = Recorder()
    meter = ToldMeter(events)
    job = Job("trial", WorkloadRef("wl.py"))
    _run_meter(job, cast(Meter, meter), events, cast(WorstCase, TriedWorstCase(events, has_some)))
    between = [("use_up", "warm_up")] if has_some else []
    assert meter.asked == [("warm_up", "warm_up"), *between, ("run_plan", "measure")]
