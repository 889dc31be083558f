"""The processes of one trial that train together: who speaks for them, what the others hold, and when all of them stop.

They share nothing but the trial's folder: launchers start them with every descriptor closed.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import torch

from gputune_tui.domain.job import JOB_VARIABLE, RANKS_FOLDER
from gputune_tui.domain.plain import from_plain, to_plain
from gputune_tui.domain.trial import MemoryPeaks, largest_peaks
from gputune_tui.errors import ProtocolError

STOP_FILE = "stop"
"""Holds the optimizer step with which all ranks end."""
OVER_FILE = "over"
"""There once the trial has all that it wants; holds the process id of the one that says so. The start-up hook looks for
it, too."""
SPEAKER_FILE = "speaker"


class Ranks:
    """This process among those of its trial. Created at its first optimizer step, when it knows its rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stop = str(folder / STOP_FILE)
        self.rank, self.world_size = rank_and_world_size()
        self._is_first = self.rank == 0 and self._claim()

    @property
    def speaks(self) -> bool:
        """True of the one process that times blocks and tells of them."""
        return self._is_first

    @property
    def trains_along(self) -> bool:
        """True of every process that belongs to the same training as the one that speaks."""
        return self._is_first or self.world_size > 1

    def _claim(self) -> bool:
        """A second process that trains on its own account is none of the trial's."""
        try:
            os.close(os.open(self._folder / SPEAKER_FILE, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        except OSError:
            return True
        return True

    def stop_with(self, step: int) -> None:
        """Every rank ends with its optimizer step of this number, counted from 1; it must be the next one.

        None is lost in an exchange of gradients: no other rank can have ended that step yet, since it needs this one's
        gradients, and each looks for the file once it has.
        """
        with contextlib.suppress(OSError):
            draft = Path(self._stop).with_suffix(".draft")
            draft.write_text(str(step))
            draft.replace(self._stop)

    def must_stop(self, step: int) -> bool:
        """Whether the speaker has called for the end with this step or one before."""
        if not os.access(self._stop, os.F_OK):
            return False
        with contextlib.suppress(OSError, ValueError):
            return step >= int(Path(self._stop).read_text())
        return True

    def tell_over(self) -> None:
        """All that the trial wants is in hand."""
        with contextlib.suppress(OSError):
            (self._folder / OVER_FILE).write_text(str(os.getpid()))

    def tell_peaks(self, peaks: MemoryPeaks) -> None:
        """Leave this rank's peaks for the one that speaks."""
        path = self._folder / f"rank{self.rank}.json"
        with contextlib.suppress(OSError):
            draft = path.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(to_plain(peaks)), encoding="utf-8")
            draft.replace(path)

    def largest(self, own: MemoryPeaks) -> MemoryPeaks:
        """The largest peak of each kind over this rank and what the others have left."""
        found = [own]
        if self.world_size > 1:
            for path in self._folder.glob("rank*.json"):
                with contextlib.suppress(OSError, ValueError, ProtocolError):
                    found.append(from_plain(MemoryPeaks, json.loads(path.read_text(encoding="utf-8"))))
        return largest_peaks(found)


def trial_folder() -> Path:
    """Where its processes leave what they tell each other."""
    return Path(os.environ[JOB_VARIABLE]).parent / RANKS_FOLDER


def rank_and_world_size() -> tuple[int, int]:
    """Of the process group where there is one, else as launchers name them in the environment; 0 of 1 without."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return _number("RANK", 0), max(1, _number("WORLD_SIZE", 1))


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else default
