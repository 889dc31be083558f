"""`verify`: measure a configuration again here and hold it against what the file claims."""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gputune_tui.cli.driving import drive
from gputune_tui.cli.output import write_json
from gputune_tui.cli.progress import ProgressPrinter
from gputune_tui.cli.tables import table
from gputune_tui.cli.tuning import MEMORY_REASONS, failure_of
from gputune_tui.domain.environment import Environment
from gputune_tui.domain.knobs import read_assignments
from gputune_tui.domain.settings import TrainSettings, settings_from_dict
from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import TrialState
from gputune_tui.engine.commands import RunSettings, StudyConfig
from gputune_tui.engine.engine import Engine
from gputune_tui.errors import ConfigFileError, VerifyDisagrees
from gputune_tui.export.report import ExportReport
from gputune_tui.export.yaml_config import read_config
from gputune_tui.ranking.document import trial_entry
from gputune_tui.ranking.leaderboard import Row, leaderboard
from gputune_tui.ranking.statistics import Throughput
from gputune_tui.ranking.wording import speed_text
from gputune_tui.units import bytes_text, percent_text

SPEED_TOLERANCE = 0.10
PEAK_TOLERANCE = 0.05
"""DESIGN section 8, "verify"."""


@dataclass(frozen=True)
class Check:
    """One point of the comparison."""

    what: str
    claimed: str
    measured: str
    agrees: bool | None
    """None where it is reported, not judged."""
    reason: str = ""


def verify(given: dict[str, Any]) -> None:
    """Body of `verify`.

    Raises:
        VerifyDisagrees: a judged point does not hold.
        GputuneError: the file, the workload or this node.
    """
    claim = read_config(Path(given["config"]))
    click.echo(f"this runs the workload named in {given['config']}: {claim.workload.name}", err=True)
    baseline = baseline_settings(claim)
    orders = [RunSettings(claim.settings, given["launches"])]
    if baseline is not None:
        orders.append(RunSettings(baseline, 1))
    engine = Engine()
    with tempfile.TemporaryDirectory(prefix="gputune-verify-") as study:
        drive(engine, verify_config(claim, study, given), list(orders), ProgressPrinter())
        session = engine.session
        board = leaderboard(session.trials, session.opened.budget, baseline)
        row = board.row(min(trial.id for trial in session.trials))
        assert row is not None
        if row.trial.state is not TrialState.COMPLETE:
            assert row.trial.failure is not None
            if row.trial.failure.reason in MEMORY_REASONS:
                raise VerifyDisagrees(f"verify disagrees: {row.trial.failure.message}")
            raise failure_of(row.trial)
    checks = compare(claim, row, session.opened.identity.environment, session.opened.budget)
    if session.opened.identity.content_hash != claim.content_hash:
        checks.insert(0, Check("workload source", claim.content_hash[:12], "changed since", None))
    report(given["json_path"], checks, row)


def verify_config(claim: ExportReport, study: str, given: dict[str, Any]) -> StudyConfig:
    """The study that measures the claim anew."""
    environment = claim.environment
    return StudyConfig(
        workload=claim.workload,
        device=given["device"] or ("cpu" if environment.device_kind == "cpu" else environment.device_uuid or "cuda"),
        budget=given["budget"] or str(claim.budget.device_bytes),
        host_budget=asked_for_host(claim.budget),
        cold=given["cold"] or was_cold(claim),
        global_batch_size=claim.global_batch_size,
        study=study,
        python=claim.settings.python,
        detects=claim.script is not None,
    )


def was_cold(claim: ExportReport) -> bool:
    """True where the claim was measured with `--cold`, as its command tells.

    Raises:
        ConfigFileError: the command is no command line.
    """
    try:
        words = shlex.split(claim.command)
    except ValueError as error:
        raise ConfigFileError(
            f"command: {claim.command!r} is no command line ({str(error).lower()}); export the configuration again"
        ) from None
    own = words[: words.index("--")] if "--" in words else words
    return "--cold" in own


def asked_for_host(budget: MemoryBudget) -> str | None:
    """The host's budget that somebody asked for; a default belongs to the node on which it was computed."""
    return None if budget.host_bytes is None or budget.host_is_default else str(budget.host_bytes)


def baseline_settings(claim: ExportReport) -> TrainSettings | None:
    """The settings that the claim compares itself with; None where these are its own."""
    if claim.baseline is None or not claim.baseline.differs_in:
        return None
    return settings_from_dict({**claim.settings.as_dict(), **read_assignments(claim.baseline.differs_in)})


def compare(claim: ExportReport, row: Row, here: Environment, budget: MemoryBudget) -> list[Check]:
    """Every point of the comparison."""
    checks = [_speed_check(claim.throughput, row.throughput, hardware_differs(claim.environment, here))]
    claimed = claim.memory.device_peak_bytes if claim.memory else None
    peak = row.memory.device_peak_bytes if row.memory else None
    if peak is not None:
        grew = claimed is not None and peak > claimed * (1 + PEAK_TOLERANCE)
        over = peak > budget.device_bytes
        reason = (
            "over the budget" if over else f"more than {percent_text(PEAK_TOLERANCE)} above the claim" if grew else ""
        )
        checks.append(Check("peak", bytes_text(claimed), bytes_text(peak), not (grew or over), reason))
    checks.append(Check("guard", claim.guard, row.guard, row.disqualified is None, row.disqualified or ""))
    return checks


def hardware_differs(claimed: Environment, here: Environment) -> bool:
    """True where throughput may not be judged: another device or, on a CPU, another number of them."""
    if here.device_kind == "cpu" and claimed.effective_cpus != here.effective_cpus:
        return True
    return (claimed.device_name, claimed.device_kind) != (here.device_name, here.device_kind)


def _speed_check(claimed: Throughput | None, measured: Throughput | None, other_hardware: bool) -> Check:
    words = (f"{speed_text(claimed)} samples/s", f"{speed_text(measured)} samples/s")
    if claimed is None or measured is None:
        return Check("throughput", *words, None)
    if other_hardware:
        return Check("throughput", *words, None, "other hardware: reported, not judged")
    missing = claimed.value - measured.value
    # The intervals are symmetric in logarithms: of each the half that points at the other counts.
    halves = (claimed.value - claimed.low, measured.high - measured.value)
    # Both together: the claim is the best of many settings by one launch each, so it is likely a lucky one.
    slower = missing > claimed.value * SPEED_TOLERANCE and missing > sum(halves)
    reason = f"{percent_text(missing / claimed.value)} below the claim" if slower else ""
    return Check("throughput", *words, not slower, reason)


def report(json_path: str | None, checks: list[Check], row: Row) -> None:
    """Print the comparison.

    Raises:
        VerifyDisagrees: a judged point does not hold.
    """
    disagreements = [f"{check.what}: {check.reason}" for check in checks if check.agrees is False]
    if json_path is not None:
        document = {
            "schema": 1,
            "agrees": not disagreements,
            "checks": [vars(check) for check in checks],
            "measured": trial_entry(row),
        }
        write_json(json_path, document)
    if json_path != "-":
        verdicts = {True: "agrees", False: "DISAGREES", None: "not judged"}
        lines = [(c.what, c.claimed, c.measured, verdicts[c.agrees], c.reason) for c in checks]
        header = ("", "claimed", "measured here", "verdict", "")
        click.echo(table(header, lines, left=frozenset({0, 1, 2, 3, 4})))
    if disagreements:
        raise VerifyDisagrees(f"verify disagrees: {'; '.join(disagreements)}")
