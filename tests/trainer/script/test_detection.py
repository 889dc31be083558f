"""What is seen of scripts that were written without us in mind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gputune_tui.domain.job import Job, MeasurePlan, ScriptOrder
from gputune_tui.domain.script import ScriptFacts
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import FailureReason, TrialState
from tests.trainer.script.detecting import facts_of, launched, look
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
    assert facts.flags == {"--workers": "num_workers", "--batch-size": "micro_batch_size", "--amp": "precision"}


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


SEARCHING = """
import importlib.util
assert importlib.util.find_spec("torch") is not None
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(64, 4))

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = {"train": TensorDataset(torch.ones(640, 4)), "val": TensorDataset(torch.ones(8, 4))}
loaders = {name: DataLoader(data[name], batch_size=8) for name in data}
for number in range(1000):
    optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
    for x in BATCHES:
        optimizer.zero_grad()
        model(x[0] if isinstance(x, list) else x).pow(2).mean().backward()
        optimizer.step()
    if number % 2:
        with torch.no_grad():
            [model(x) for (x,) in loaders["val"]]
"""


@pytest.mark.parametrize(
    ("batches", "knob", "words"),
    [
        ("DataLoader(Stream(), batch_size=32)", "num_workers", "iterable dataset"),
        ("DataLoader(Stream(), batch_size=32)", "micro_batch_size", "iterable dataset"),
        ("DataLoader(data['train'], batch_size=320)", "micro_batch_size", "learning rate by hand"),
        ("loaders['train']", "num_workers", None),
    ],
)
def test_loaders_of_many_kinds(tmp_path: Path, batches: str, knob: str, words: str | None) -> None:
    script = tmp_path / "train.py"
    script.write_text(SEARCHING.replace("BATCHES", batches))
    facts, failure = look(tmp_path / "trial", (), (sys.executable, str(script)))
    assert facts is not None, failure
    why = facts.refusal(knob)
    assert why is None if words is None else words in str(why)
    assert facts.loader is not None
    assert ("." in facts.loader.site) is False


TWO_PHASES = """
import torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=8)
loaders = [DataLoader(TensorDataset(torch.ones(n, 4)), batch_size=8) for n in (64, 16)]
def train(epochs):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(epochs):
        for (x,) in loaders[1]:
            model.zero_grad()
            model(x).mean().backward()
            optimizer.step()
train(3)
train(100000)
"""


def test_the_second_loader_of_a_line_and_a_second_optimizer(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TWO_PHASES)
    command = (sys.executable, str(script))
    facts, failure = look(tmp_path / "look", (), command)
    assert facts is not None, failure
    assert facts.loader is not None
    assert facts.loader.site.endswith(".1")
    job = Job(
        "trial",
        WorkloadRef("s", command=command),
        settings=TrainSettings(micro_batch_size=8),
        threads=1,
        plan=MeasurePlan(blocks=2, min_blocks=2, block_s=0.1),
        script=ScriptOrder((), facts.loader.site, "loader"),
    )
    run = launched(job, tmp_path / "trial")
    assert run.state is TrialState.COMPLETE, run.failure
    assert all(block.samples == 8 * block.steps for block in run.seen.blocks)


PROBED = "python -c 'import torch; raise ValueError(1)' || true; exec python SCRIPT"


def test_what_failed_before_the_training_is_the_commands_own_affair(tmp_path: Path) -> None:
    shell = PROBED.replace("python", sys.executable).replace("SCRIPT", str(SCRIPTS / "mnist.py"))
    facts, failure = look(tmp_path, (), ("bash", "-c", shell))
    assert facts is not None, failure


SWALLOWING = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    try:
        model(torch.ones(8, 4)).mean().backward()
        optimizer.step()
    except:
        time.sleep(0.01)
"""


def test_a_script_that_catches_everything_is_ended_all_the_same(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SWALLOWING)
    facts, failure = look(tmp_path / "trial", (), (sys.executable, str(script)))
    assert facts is not None, failure
    assert facts.micro_batch_size == 8


def test_what_is_counted_stands_beside_what_is_declared(tmp_path: Path) -> None:
    counted, failure = look(tmp_path / "counted", ("mnist.py",), samples_per_step=1024)
    assert counted is not None, failure
    assert counted.micro_batch_size == 32
    script = tmp_path / "train.py"
    script.write_text(SIAMESE)
    uncounted, failure = look(tmp_path / "declared", (), (sys.executable, str(script)), samples_per_step=24)
    assert uncounted is not None, failure
    assert uncounted.samples_per_step == 24
    unknown, failure = look(tmp_path / "unknown", (), (sys.executable, str(script)))
    assert unknown is None
    assert failure is not None
    assert "--samples-per-step" in failure.message


SIAMESE = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    (model(torch.ones(8, 4)) - model(torch.zeros(8, 4))).pow(2).mean().backward()
    optimizer.step()
"""
