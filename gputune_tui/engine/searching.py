"""Search: ask the sampler, run what is not there yet, tell it the result, until nothing is left to ask."""

from __future__ import annotations

import math
import time
from collections.abc import Generator

from gputune_tui.domain.space import BATCH_KNOBS, Cells, SearchSpace
from gputune_tui.domain.template import told_knobs
from gputune_tui.engine.commands import Search
from gputune_tui.engine.defaults import default_space, script_space
from gputune_tui.engine.events import Confirming, EngineEvent, SearchFinished, SearchPlanned
from gputune_tui.engine.running import Task
from gputune_tui.engine.study_session import StudySession
from gputune_tui.errors import UsageError
from gputune_tui.search.grid import GridSampler
from gputune_tui.search.random import RandomSampler
from gputune_tui.search.sampler import Sampler
from gputune_tui.search.stop import stop_reason
from gputune_tui.units import bytes_text

CONFIRMED_LAUNCHES = 3
"""As many as `verify` makes of what it is told."""


def search(session: StudySession, command: Search) -> Task:
    """Run the cells of the space that this study has not finished yet.

    Raises:
        UsageError: the space cannot be read or holds no setting.
    """
    cells, finished = yield from plan_search(session, command)
    yield from _run_cells(session, command, cells, len(cells.settings) - finished)


def plan_search(session: StudySession, command: Search) -> Generator[EngineEvent | None, None, tuple[Cells, int]]:
    """Choose the cells and say so; returns them and how many of them are finished.

    Raises:
        UsageError: the space cannot be read or holds no setting.
    """
    space, is_default = choose_space(session, command)
    opened = session.opened
    cells = space.cells(opened.identity.global_batch_size, opened.baseline, opened.identity.environment.device_kind)
    for settings in cells.settings:
        opened.check(settings)
    session.reference = cells.reference
    finished = [settings for settings in cells.settings if session.finished(settings) is not None]
    yield SearchPlanned(
        space.text(), is_default, len(cells.settings), len(finished), cells.dropped, cells.collapsed, cells.reference
    )
    return cells, len(finished)


def _run_cells(session: StudySession, command: Search, cells: Cells, to_run: int) -> Task:
    sampler = make_sampler(command.sampler, cells, session.opened.config.seed)
    began = time.monotonic()
    number, because = 0, None
    trials = []
    while because is None and (settings := sampler.ask()) is not None:
        trial = session.finished(settings)
        if trial is None:
            if command.max_time_s is not None and time.monotonic() - began > command.max_time_s:
                because = f"--max-time is up; {to_run - number} settings were not tried"
                break
            number += 1
            trial = yield from session.run(settings, number, to_run)
        sampler.tell(trial)
        trials.append(trial)
        because = stop_reason(trials, cells.reference) or too_small_for_anything(session)
    if because is None:
        until = math.inf if command.max_time_s is None else began + command.max_time_s
        yield from confirm_best(session, cells, until=until)
    yield SearchFinished(because)


def confirm_best(
    session: StudySession, cells: Cells, launches: int = CONFIRMED_LAUNCHES, until: float = math.inf
) -> Task:
    """Launch the best again until the best is one with so many launches of full length, those outside of rounds.

    No further one is begun after `until` (of `time.monotonic`).

    The fastest of many settings with a launch each was lucky more often than not, and a machine drifts meanwhile.
    """
    while time.monotonic() < until and (best := session.board().best) is not None:
        missing = launches - sum(launch.round is None for launch in best.trial.launches)
        if missing <= 0 or best.trial.settings not in cells.settings:
            return
        yield Confirming(best.trial.id, missing)
        if (yield from session.run_again(best.trial, missing)) is None:
            return


def too_small_for_anything(session: StudySession) -> str | None:
    """Why no setting at all can fit: the process alone, before any model, takes more than the budget."""
    overhead, budget = session.fixed_overhead_bytes, session.opened.budget.device_bytes
    if overhead is None or overhead < budget:
        return None
    return f"no setting can fit: a process with torch alone takes {bytes_text(overhead)} of {bytes_text(budget)}"


def make_sampler(name: str, cells: Cells, seed: int) -> Sampler:
    """The sampler of that name over the cells."""
    if name == "grid":
        return GridSampler(cells)
    if name == "random":
        return RandomSampler(cells, seed)
    raise UsageError(f"there is no sampler {name!r}; this version has grid and random")


def choose_space(session: StudySession, command: Search) -> tuple[SearchSpace, bool]:
    """The space that was asked for, or the device's default without the knobs that a command cannot be given.

    Raises:
        UsageError: the space names a knob that the command cannot be given.
    """
    opened = session.opened
    workload, script = opened.identity.workload, opened.script
    told = told_knobs(workload)
    if command.space is not None:
        space = SearchSpace.parse(command.space)
        without = [name for name in space.values if name not in told and name not in BATCH_KNOBS]
        if workload.command and script is None and without:
            raise UsageError(
                f"the command has no placeholder {{{without[0]}}}, so {without[0]} cannot differ between trials; "
                "put it into the command"
            )
        return space, False
    environment = opened.identity.environment
    batch, cpus = opened.identity.global_batch_size, opened.host.effective_cpus
    if script is not None:
        return script_space(environment.device_kind, cpus, script, told), True
    space = default_space(environment.device_kind, batch, cpus, bool(workload.command))
    if workload.command:
        space = SearchSpace({name: values for name, values in space.values.items() if name in told})
        if not space.values:
            raise UsageError("say which values to try: --space 'micro_batch_size=4,8'")
    return space, True
