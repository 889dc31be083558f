"""The engine: one command at a time, events out. It does the same in-process and as a child of the screen."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from gputune_tui.domain.space import settings_for
from gputune_tui.engine.commands import Command, Compare, MeasureAgain, RunSettings, RunTrial, Search, StudyConfig
from gputune_tui.engine.comparing import compare
from gputune_tui.engine.events import EngineEvent
from gputune_tui.engine.opening import open_workload
from gputune_tui.engine.racing import race
from gputune_tui.engine.remeasuring import measure_again
from gputune_tui.engine.running import Task
from gputune_tui.engine.searching import search
from gputune_tui.engine.study_session import StudySession, open_session
from gputune_tui.store.places import default_study_path
from gputune_tui.trial.launcher import Launcher
from gputune_tui.trial.supervisor import become_subreaper
from gputune_tui.trial.warm_launcher import WarmLauncher


class Engine:
    """Opens a study and carries out commands on it.

    `open` and `handle` are generators: every item is an event, or None as a tick on which the caller may look at its
    own inbox and close the generator. Closing ends what runs, stores it as interrupted, and leaves no process.
    """

    def __init__(self, launcher: Launcher | None = None) -> None:
        self._launcher = launcher or WarmLauncher()
        self._session: StudySession | None = None
        become_subreaper()

    @property
    def session(self) -> StudySession:
        """The open study."""
        assert self._session is not None, "open a study first"
        return self._session

    @property
    def is_open(self) -> bool:
        """True once a study is open."""
        return self._session is not None

    def open(self, config: StudyConfig) -> Generator[EngineEvent | None, None, None]:
        """Read the workload and open its study; the study that was open before is closed once this one is.

        Raises:
            GputuneError: whatever is wrong with the workload, the device, the budget or the study, in one sentence.
        """
        opened = yield from open_workload(config, self._launcher)
        device = opened.identity.environment.device
        path = Path(config.study) if config.study else default_study_path(opened.config.workload, device)
        if self._session is not None:
            # It may be the same study, and what it could not write yet belongs to what is read now.
            self._session.flush()
        session = open_session(opened, path.absolute(), self._launcher)
        self._close_session()
        self._session = session
        yield session.opening_event()

    def handle(self, command: Command) -> Task:
        """Carry out one command, unless somebody else computes on the device and nobody has said to share it.

        Raises:
            GputuneError: what is wrong with the command, or with the device.
        """
        yield from self.session.place.admit()
        if isinstance(command, Search):
            yield from race(self.session, command) if command.race else search(self.session, command)
        elif isinstance(command, Compare):
            yield from compare(self.session, command)
        elif isinstance(command, MeasureAgain):
            yield from measure_again(self.session, command)
        else:
            yield from self._run_one(command)

    def _run_one(self, command: RunTrial | RunSettings) -> Task:
        session = self.session
        if isinstance(command, RunSettings):
            settings = command.settings
        else:
            identity = session.opened.identity
            kind = identity.environment.device_kind
            settings = settings_for(command.knobs, session.opened.baseline, identity.global_batch_size, kind)
        session.opened.check(settings)
        yield from session.run(settings, 1, 1, command.launches)

    def close(self) -> None:
        """Close the study, and end what was prepared for further trials."""
        self._close_session()
        self._launcher.close()

    def _close_session(self) -> None:
        if self._session is not None:
            self._session.close()
