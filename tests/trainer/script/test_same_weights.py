"""A script under injected knobs trains the same weights as it does by itself."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gputune_tui.domain.job import ScriptOrder
from gputune_tui.domain.script import ScriptFacts
from gputune_tui.domain.settings import TrainSettings
from tests.trainer.script.detecting import facts_of
from tests.trainer.script.running import order_of, relative_l2, run_script, trained

MNIST = ("mnist.py", "--epochs", "2", "--samples", "1000", "--batch-size", "32", "--lr", "0.01")
"""32 optimizer steps an epoch, the last of each with 8 samples."""


@pytest.fixture(scope="module")
def mnist(tmp_path_factory: pytest.TempPathFactory) -> ScriptFacts:
    return facts_of(tmp_path_factory.mktemp("mnist"), *MNIST)


def settings_of(facts: ScriptFacts, **changes: object) -> TrainSettings:
    return replace(TrainSettings(**facts.knobs()), **changes).canonical("cpu")  # type: ignore[arg-type]


@cache
def plain(*arguments: str) -> Tensor:
    """The weights that a script trains by itself."""
    with tempfile.TemporaryDirectory() as folder:
        return saved_by(arguments, Path(folder) / "plain.pt", None, None)[0]


def weights(folder: Path, facts: ScriptFacts, arguments: tuple[str, ...], **changes: object) -> tuple[Tensor, str]:
    """The same under changed settings, and what was said of them."""
    settings = settings_of(facts, **changes)
    return saved_by(arguments, folder / "set.pt", settings, order_of(facts, settings))


def saved_by(
    arguments: tuple[str, ...], path: Path, settings: TrainSettings | None, order: ScriptOrder | None
) -> tuple[Tensor, str]:
    """Run it to its end."""
    option = "--save-model" if arguments[0] == "mnist.py" else "--save"
    done = run_script((*arguments, option, str(path)), settings, order)
    assert done.returncode == 0, done.stderr
    return trained(path), done.stderr


def test_accumulation_in_single_precision(tmp_path: Path, mnist: ScriptFacts) -> None:
    found, said = weights(tmp_path, mnist, MNIST, micro_batch_size=8, accumulation_steps=4)
    assert "accumulation_steps=4" in said
    assert relative_l2(found, plain(*MNIST)) <= 1e-6


def test_accumulation_in_double_precision(tmp_path: Path, mnist: ScriptFacts) -> None:
    found, _ = weights(tmp_path, mnist, (*MNIST, "--double"), micro_batch_size=8, accumulation_steps=4)
    assert relative_l2(found, plain(*MNIST, "--double")) <= 1e-12


SCHEDULED = ("scheduled.py", "--epochs", "5")
"""15 optimizer steps an epoch, 75 in all; 40 samples are left out of each."""


@pytest.fixture(scope="module")
def scheduled(tmp_path_factory: pytest.TempPathFactory) -> ScriptFacts:
    return facts_of(tmp_path_factory.mktemp("scheduled"), *SCHEDULED)


def test_clipping_scheduler_and_dropped_batches_go_by_whole_steps(tmp_path: Path, scheduled: ScriptFacts) -> None:
    found, said = weights(tmp_path, scheduled, SCHEDULED, micro_batch_size=16, accumulation_steps=4)
    assert "accumulation_steps=4" in said
    assert relative_l2(found, plain(*SCHEDULED)) <= 1e-12


@pytest.mark.parametrize("kind", ["full", "segments:2"])
def test_checkpointing_is_bit_equal(tmp_path: Path, scheduled: ScriptFacts, kind: str) -> None:
    arguments = (*SCHEDULED, "--dropout", "0.1")
    found, said = weights(tmp_path, scheduled, arguments, activation_checkpointing=kind)
    assert "recomputed" in said
    assert torch.equal(found, plain(*arguments))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_workers": 2, "prefetch_factor": 3},
        {"optimizer": "foreach"},
        {"flush_denormal": True},
    ],
)
def test_what_does_not_touch_the_computation_is_bit_equal(
    tmp_path: Path, scheduled: ScriptFacts, changes: dict[str, object]
) -> None:
    found, said = weights(tmp_path, scheduled, SCHEDULED, **changes)
    assert said.count("gputune-tui: ") >= 1
    assert torch.equal(found, plain(*SCHEDULED))


FEW = (*MNIST[:1], "--epochs", "1", "--samples", "128", "--batch-size", "32", "--lr", "0.01")
"""Half precision is emulated here, and slow."""


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("batch", [{}, {"micro_batch_size": 8, "accumulation_steps": 4}])
def test_half_precision_trains_nearly_the_same(
    tmp_path: Path, mnist: ScriptFacts, precision: str, batch: dict[str, int]
) -> None:
    found, said = weights(tmp_path, mnist, FEW, precision=precision, **batch)
    assert f"{precision}: Net is called under autocast" in said
    assert 0 < relative_l2(found, plain(*FEW)) <= 0.01


def test_channels_last_is_the_same_to_rounding(tmp_path: Path, mnist: ScriptFacts) -> None:
    found, said = weights(tmp_path, mnist, FEW, channels_last=True)
    assert "channels_last" in said
    assert relative_l2(found, plain(*FEW)) <= 1e-5


def test_a_job_that_cannot_run_so_says_why_and_ends(tmp_path: Path, mnist: ScriptFacts) -> None:
    settings = settings_of(mnist, activation_checkpointing="full")
    order = ScriptOrder(("activation_checkpointing",))
    done = run_script(MNIST, settings, order)
    assert done.returncode == 2
    assert "gputune-tui: the job cannot run under these settings: no repeated blocks" in done.stderr
    assert "Traceback" not in done.stderr
