"""Every failure a user can meet: one class per exit code, one plain sentence per instance."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the command line (a contract: README, section "Exit codes")."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    NOTHING_FITS = 3
    WORKLOAD_FAILS = 4
    ENVIRONMENT = 5
    VERIFY_DISAGREES = 6


class GputuneError(Exception):
    """Base of all failures that are shown to a user: the message says what, why and what to do."""

    exit_code: ExitCode = ExitCode.INTERNAL


class UsageError(GputuneError):
    """An unknown workload, knob or value, a bad size, a contradiction in what was asked."""

    exit_code = ExitCode.USAGE


class StudyError(UsageError):
    """A study directory that is missing, unreadable or damaged; names the file and the line."""


class ConfigFileError(UsageError):
    """A YAML file that cannot be taken: unknown key, duplicate key or wrong type, by name and line."""


class NothingFitsError(GputuneError):
    """No setting fits the budget, or there is nothing to export."""

    exit_code = ExitCode.NOTHING_FITS


class WorkloadError(GputuneError):
    """The user's workload itself fails: import, syntax, or every trial."""

    exit_code = ExitCode.WORKLOAD_FAILS


class EnvironmentProblem(GputuneError):
    """This machine or terminal cannot do what was asked (no such device, disk full)."""

    exit_code = ExitCode.ENVIRONMENT


class StoreWriteError(EnvironmentProblem):
    """A result could not be written to the study; what is in memory is kept and can still be printed."""


class VerifyDisagrees(GputuneError):
    """A new measurement does not support what the configuration claims."""

    exit_code = ExitCode.VERIFY_DISAGREES


class ProtocolError(GputuneError):
    """A line that is not an event of the trial protocol or not a record of the journal."""
