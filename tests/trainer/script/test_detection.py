"""What is seen of scripts that were written without us in mind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gputune_tui.domain.script import ScriptFacts
from gputune_tui.domain.trial import FailureReason
from tests.trainer.script.detecting import facts_of, look
from tests.trainer.script.running import SCRIPTS

BATCH = ("micro_batch_size", "accumulation_steps")


def shape(facts: ScriptFacts) -> tuple[int, int, int, str]:
    return facts.micro_batch_size, facts.accumulation_steps, facts.world_size, facts.precision


def test_a_plain_loop(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, "mnist.py", "--batch-size", "48")
    assert shape(facts) == (48, 1, 1, "fp32")
    assert (facts.model, facts.optimizer, facts.counted_by, facts.framework) == ("Net", "SGD", "loader", "")
    assert facts.loader is not None
    assert facts.loader.place.startswith("mnist.py:")
    assert (facts.loader.num_workers, facts.loader.samples) == (0, 2048)
    assert set(facts.refused) == {"activation_checkpointing"}


@pytest.mark.parametrize(("amp", "precision"), [((), "fp32"), (("--amp",), "bf16")])
def test_images_with_workers_and_amp_of_its_own(tmp_path: Path, amp: tuple[str, ...], precision: str) -> None:
    facts = facts_of(tmp_path, "imagenet.py", "-j", "1", *amp)
    assert shape(facts) == (16, 1, 1, precision)
    assert facts.blocks == "3 x Block"
    assert facts.loader is not None
    assert (facts.loader.num_workers, facts.loader.prefetch_factor) == (1, 2)
    assert ("precision" in facts.refused) == bool(amp)


def test_batches_that_no_loader_gives_are_counted_at_the_model(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, "char_gpt.py", "--batch_size=6")
    assert shape(facts) == (6, 1, 1, "fp32")
    assert (facts.counted_by, facts.loader, facts.blocks) == ("model", None, "2 x Block")
    assert "no DataLoader feeds the training" in str(facts.refusal("micro_batch_size"))
    assert facts.refusal("num_workers") is not None
    assert facts.refusal("activation_checkpointing") is None


def test_accumulation_of_its_own_is_told_from_losses_added_up(tmp_path: Path) -> None:
    facts = facts_of(tmp_path / "loader", "accumulating.py")
    assert shape(facts) == (8, 4, 1, "fp32")
    assert "accumulates by itself (4 backward passes" in str(facts.refusal("accumulation_steps"))
    facts = facts_of(tmp_path / "model", "char_gpt.py", "--gradient_accumulation_steps=2")
    assert shape(facts) == (8, 2, 1, "fp32")


def test_checkpointing_of_its_own(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, "sequential_checkpoints.py")
    assert shape(facts) == (16, 1, 1, "fp32")
    assert "recomputes activations by itself" in str(facts.refusal("activation_checkpointing"))


def test_autocast_and_a_scaler_of_its_own(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, "autocast_and_scaler.py")
    assert shape(facts) == (32, 1, 1, "bf16")
    assert "autocast and a GradScaler by itself" in str(facts.refusal("precision"))
    assert "GradScaler" in str(facts.refusal("micro_batch_size"))


def test_a_tuned_loader(tmp_path: Path) -> None:
    loader = facts_of(tmp_path, "tuned_loader.py").loader
    assert loader is not None
    assert (loader.num_workers, loader.prefetch_factor, loader.pin_memory, loader.persistent_workers) == (
        1, 4, True, True
    )  # fmt: skip


def test_under_a_profiler_the_script_ends_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDED_FILE", str(tmp_path / "ended"))
    assert shape(facts_of(tmp_path / "trial", "profiled.py")) == (16, 1, 1, "fp32")
    assert (tmp_path / "ended").read_text() == "finally\n"


@pytest.mark.parametrize("launcher", ["spawn", "torchrun", "bash"])
def test_ranks_are_counted_together(tmp_path: Path, launcher: str) -> None:
    script, after = str(SCRIPTS / "ddp.py"), tmp_path / "after"
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    command = {
        "spawn": (sys.executable, script, str(after)),
        "torchrun": (torchrun, "--standalone", "--nproc-per-node=2", script),
        "bash": ("bash", "-c", f"{sys.executable} {script}; {sys.executable} -c \"open('{after}', 'w')\""),
    }[launcher]
    facts, failure = look(tmp_path / "trial", (), command)
    assert facts is not None, failure
    assert shape(facts) == (16, 1, 2, "fp32")
    assert any("set_epoch" in remark for remark in facts.remarks)
    # What comes after the training is not run.
    assert not after.exists()


def test_a_sampler_that_is_told_the_epoch_is_no_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_EPOCH", "1")
    assert facts_of(tmp_path, "ddp.py").remarks == ()


@pytest.mark.parametrize(
    ("what", "reason", "words"),
    [
        ("exit-code", FailureReason.CRASH, "exit code 7"),
        ("never", FailureReason.ENDED_EARLY, "never called enough optimizer steps"),
    ],
)
def test_a_script_that_does_not_train(tmp_path: Path, what: str, reason: FailureReason, words: str) -> None:
    facts, failure = look(tmp_path, ("misbehaving.py", what))
    assert facts is None
    assert failure is not None
    assert failure.reason is reason
    assert words in failure.message


def test_a_script_that_ends_early_is_known_by_what_it_did(tmp_path: Path) -> None:
    assert shape(facts_of(tmp_path, "misbehaving.py", "early")) == (8, 1, 1, "fp32")


def test_megabytes_of_output_do_not_matter(tmp_path: Path) -> None:
    assert shape(facts_of(tmp_path, "misbehaving.py", "megabytes")) == (8, 1, 1, "fp32")


def test_two_optimizers_keep_their_batches(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, "misbehaving.py", "two-optimizers")
    assert "2 optimizers take turns" in str(facts.refusal("micro_batch_size"))


def test_a_command_that_hides_our_hook_is_told_what_to_do(tmp_path: Path) -> None:
    script = str(SCRIPTS / "mnist.py")
    facts, failure = look(tmp_path, (), ("bash", "-c", f"PYTHONPATH=/src {sys.executable} {script} --epochs 1"))
    assert facts is None
    assert failure is not None
    assert "PYTHONPATH=src:$PYTHONPATH" in failure.message
