"""The trials of an open study as events for a screen that does not have them yet."""

from __future__ import annotations

from collections.abc import Iterator

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import BATCH_KNOBS, settings_for
from gputune_tui.domain.trial import Trial
from gputune_tui.engine.events import StudyTrials
from gputune_tui.engine.opening import Opened
from gputune_tui.engine.study_session import StudySession
from gputune_tui.errors import UsageError

CHUNK_TRIALS = 50
CHUNK_STEPS = 2000
"""Step times of one event, so that reading it does not hold up a screen."""


def study_trials(session: StudySession) -> Iterator[StudyTrials]:
    """All trials of the session's generation; at least one event."""
    baseline = baseline_settings(session.opened)
    chunks: list[list[Trial]] = [[]]
    steps = 0
    for trial in session.trials:
        more = sum(len(launch.step_times_s) for launch in trial.launches)
        if chunks[-1] and (len(chunks[-1]) >= CHUNK_TRIALS or steps + more > CHUNK_STEPS):
            chunks.append([])
            steps = 0
        chunks[-1].append(trial)
        steps += more
    for number, chunk in enumerate(chunks, 1):
        yield StudyTrials(tuple(chunk), baseline, first=number == 1, last=number == len(chunks))


def baseline_settings(opened: Opened) -> TrainSettings:
    """The baseline of a study; where its batch knobs contradict the global batch, without them.

    A trial of such a baseline is refused with the reason; the screen still has to compare with something.
    """
    identity = opened.identity
    batch, kind = identity.global_batch_size, identity.environment.device_kind
    try:
        return settings_for({}, opened.baseline, batch, kind)
    except UsageError:
        others = {name: value for name, value in opened.baseline.items() if name not in BATCH_KNOBS}
        return settings_for({}, others, batch, kind)
