"""How launches of a study differ, as seen by one setting or pair of it: from the launches of all the others."""

from __future__ import annotations

from collections.abc import Iterable

from gputune_tui.domain.trial import Trial, TrialState
from gputune_tui.ranking.statistics import LaunchSpread, Scatter, launch_spread, scatter


class StudySpread:
    """The scatter of each COMPLETE trial of a study.

    What is computed from the launches of a trial adds their own scatter, which would count twice if the spread it
    starts from held it already.
    """

    def __init__(self, trials: Iterable[Trial]) -> None:
        self._scatters = {trial.id: scatter(trial.launches) for trial in trials if trial.state is TrialState.COMPLETE}
        every = self._scatters.values()
        self._all = Scatter(
            sum(one.square for one in every),
            sum(one.df for one in every),
            sum(one.within for one in every),
            sum(one.launches for one in every),
        )

    def without(self, *trial_ids: int) -> LaunchSpread:
        """The spread that the launches of all trials but these tell, pooled with the prior."""
        square, df, within, launches = self._all.square, self._all.df, self._all.within, self._all.launches
        for one in (self._scatters[trial_id] for trial_id in set(trial_ids) if trial_id in self._scatters):
            square, df = square - one.square, df - one.df
            within, launches = within - one.within, launches - one.launches
        # A difference of sums may end a little below zero.
        return launch_spread(Scatter(max(0.0, square), df, max(0.0, within), launches))
