"""A whole session with a user's file and torch: open, run, export, cancel among loader workers; a file that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gputune_tui.domain.job import MeasurePlan
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import FailureReason, TrialState
from gputune_tui.engine.commands import RunTrial, StudyConfig
from gputune_tui.engine.events import Exported, StudyOpened, TaskEnded, TrialFinished, TrialProgress
from gputune_tui.engine.requests import Cancel, Do, Export, Open

from .driving import Talk, of_kind, trial_processes, wait_until

pytestmark = pytest.mark.slow

WORKLOAD = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1 << 20
    def __getitem__(self, index): return torch.full((8,), index / (1 << 20))
class Workload:
    global_batch_size = 8
    def build_model(self): return torch.nn.Linear(8, 1)
    def build_dataset(self): return Data()
    def loss(self, model, batch): return model(batch).pow(2).mean()
"""


def study_of(folder: Path, source: str, plan: MeasurePlan) -> StudyConfig:
    (folder / "work.py").write_text(source)
    workload = WorkloadRef(str(folder / "work.py"))
    return StudyConfig(workload, device="cpu", budget="2GiB", study=str(folder / "study"), plan=plan)


def test_a_session(talk: Talk, tmp_path: Path) -> None:
    short = MeasurePlan(blocks=2, min_blocks=2, block_s=0.05, max_warmup_steps=6)
    talk.client.send(Open(study_of(tmp_path, WORKLOAD, short)))
    talk.client.send(Do(RunTrial()))
    events = talk.until_ended("trial")
    assert of_kind(events, StudyOpened)[0].identity.global_batch_size == 8
    trial = of_kind(events, TrialFinished)[0].trial
    assert trial.state is TrialState.COMPLETE, trial.failure
    talk.client.send(Export(None, "yaml", str(tmp_path / "out.yaml")))
    assert of_kind(talk.listen(lambda e: of_kind(e, Exported)), Exported)[0].trial_id == trial.id
    assert yaml.safe_load((tmp_path / "out.yaml").read_text())["global_batch_size"] == 8

    long = MeasurePlan(blocks=1000, block_s=60, max_timed_s=1e6)
    talk.client.send(Open(study_of(tmp_path, WORKLOAD, long)))
    talk.client.send(Do(RunTrial({"num_workers": 2})))
    talk.listen(lambda e: any(p.phase == "measure" for p in of_kind(e, TrialProgress)))
    assert len(trial_processes(tmp_path / "study")) >= 4, "a keeper, a trial and two loader workers"
    talk.client.send(Cancel())
    events = talk.until_ended("trial")
    failure = of_kind(events, TrialFinished)[0].trial.failure
    assert failure is not None
    assert failure.reason is FailureReason.KILLED
    wait_until(lambda: not trial_processes(tmp_path / "study"), 1.0, "a process of a cancelled trial still runs")


def test_a_file_that_cannot_be_imported(talk: Talk, tmp_path: Path) -> None:
    talk.client.send(Open(study_of(tmp_path, "import no_such_library\n", MeasurePlan())))
    (ended,) = of_kind(talk.until_ended("open"), TaskEnded)
    assert ended.exit_code == 4
    assert "no_such_library" in str(ended.error)
    assert "work.py:1" in str(ended.error)
