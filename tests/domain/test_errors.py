"""Every failure that a user can meet has an exit code of its own kind."""

from __future__ import annotations

import inspect

import pytest

from gputune_tui import errors

CODES = {
    "GputuneError": 1,
    "UsageError": 2,
    "StudyError": 2,
    "ConfigFileError": 2,
    "NothingFitsError": 3,
    "WorkloadError": 4,
    "EnvironmentProblem": 5,
    "StoreWriteError": 5,
    "VerifyDisagrees": 6,
    "ProtocolError": 1,
}


def classes() -> dict[str, type[errors.GputuneError]]:
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: cls for name, cls in found if issubclass(cls, errors.GputuneError)}


def test_every_class_is_listed_here() -> None:
    assert set(classes()) == set(CODES)


@pytest.mark.parametrize("name", sorted(CODES))
def test_exit_codes_are_the_contract(name: str) -> None:
    assert classes()[name]("what went wrong").exit_code == CODES[name]
