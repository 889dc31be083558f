"""Which budget an export holds the trials to, and what a verification takes from the claim; no torch runs here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gputune_tui.cli.exporting import budget_of
from gputune_tui.cli.verification import verify_config
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import Trial, TrialState
from gputune_tui.engine.exporting import reproducing_command
from gputune_tui.engine.node import host_reserve_bytes
from gputune_tui.errors import ConfigFileError
from gputune_tui.store.reading import Generation
from tests.engine.fake_interpreter import fake_interpreter
from tests.export.make import report
from tests.ranking.make import BUDGET, identity

from .run_cli import gputune

GIVEN = {"device": None, "budget": None, "cold": False}


def test_what_passes_the_host_budget_of_the_table_is_not_exported_either(tmp_path: Path) -> None:
    study = tmp_path / "study"
    command: list[str | Path] = ["tune", "fake", "--python", fake_interpreter(tmp_path), "--device", "cpu"]
    command += ["--budget", "1GiB", "--study", study, "-D", "slow_0=2", "-D", "slow_2=2", "-D", "host_mib_1=1024"]
    assert gputune(*command, "--space", "num_workers=0,1").returncode == 0

    def workers() -> str:
        done = gputune("export", study, "--to", "yaml")
        assert done.returncode == 0, done.stderr
        return next(line.strip() for line in done.stdout.splitlines() if "num_workers" in line)

    assert workers() == "num_workers: 1"
    done = gputune(*command, "--space", "num_workers=0,1,2", "--host-budget", "512MiB")
    assert done.returncode == 0, done.stderr
    assert workers() == "num_workers: 0", "of two as fast the one with fewer workers"
    for given in (["--budget", "1GiB"], ["--host-budget", "600MiB"]):
        done = gputune("export", study, "--to", "yaml", *given)
        assert "num_workers: 0" in done.stdout, "the other budget is that of the newest trial"
    larger = gputune("export", study, "--to", "yaml", "--host-budget", "2GiB")
    assert "num_workers: 1" in larger.stdout
    assert "--host-budget 2147483648" in larger.stdout


def test_a_default_of_the_host_is_known_as_one() -> None:
    total_bytes = 8 << 30
    assert identity().environment.host_memory_bytes == total_bytes
    default_bytes = total_bytes - host_reserve_bytes(total_bytes)
    ran = Trial(1, TrainSettings(), TrialState.COMPLETE, budget_bytes=4 << 30, host_budget_bytes=default_bytes)
    for trial, is_default in ((ran, True), (replace(ran, host_budget_bytes=2 << 30), False)):
        budget = budget_of(Generation(1, identity(), (trial,), None, 0.0), None)
        assert (budget.device_bytes, budget.host_bytes) == (4 << 30, trial.host_budget_bytes)
        assert budget.host_is_default is is_default
    unlimited = budget_of(Generation(1, identity(), (replace(ran, host_budget_bytes=None),), None, 0.0), None)
    assert unlimited.host_bytes is None


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_claim_that_was_measured_cold_is_verified_cold(is_cold: bool) -> None:
    made = replace(identity(options={"note": "--cold"}), cold=is_cold)
    claim = replace(report(), command=reproducing_command(made, report().settings, BUDGET))
    assert verify_config(claim, "study", GIVEN).cold is is_cold
    assert verify_config(claim, "study", {**GIVEN, "cold": True}).cold


def test_a_word_of_the_users_command_is_none_of_ours() -> None:
    claim = replace(report(), command="gputune-tui trial --device cpu -- python train.py --cold")
    assert not verify_config(claim, "study", GIVEN).cold
    with pytest.raises(ConfigFileError, match=r"no command line .*export the configuration again"):
        verify_config(replace(claim, command="gputune-tui trial 'lm"), "study", GIVEN)
