"""Our exports as the frameworks' own loaders read them; needs the extra `test-frameworks`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gputune_tui.domain.knobs import KnobValue
from gputune_tui.export.registry import renderer_named
from tests.export.make import report_on

SETTINGS: list[dict[str, KnobValue]] = [
    {},
    {"precision": "bf16", "micro_batch_size": 4, "accumulation_steps": 4},
    {"activation_checkpointing": "full", "num_workers": 2, "prefetch_factor": 4, "persistent_workers": True},
    {"compile": "reduce-overhead", "optimizer": "fused"},
]


def written(target: str, folder: Path, knobs: dict[str, KnobValue]) -> Path:
    path = folder / f"{target}.yaml"
    path.write_text(renderer_named(target)(report_on("cpu", **knobs)).text)
    return path


@pytest.mark.parametrize("knobs", SETTINGS)
def test_accelerate_reads_its_file(tmp_path: Path, knobs: dict[str, KnobValue]) -> None:
    config = pytest.importorskip("accelerate.commands.config.config_args")
    found = config.load_config_from_file(str(written("accelerate", tmp_path, knobs)))
    assert found.distributed_type == "NO"
    assert found.mixed_precision == ("bf16" if knobs.get("precision") == "bf16" else "no")
    assert found.num_processes == 1
    assert found.use_cpu is True
    assert bool(found.dynamo_config) == ("compile" in knobs)


@pytest.mark.parametrize("knobs", SETTINGS)
def test_transformers_reads_its_file(tmp_path: Path, knobs: dict[str, KnobValue]) -> None:
    transformers = pytest.importorskip("transformers")
    path = written("transformers", tmp_path, knobs)
    keys = yaml.safe_load(path.read_text())
    whole = tmp_path / "whole.yaml"
    whole.write_text(path.read_text() + f"output_dir: {tmp_path}\n")
    [found] = transformers.HfArgumentParser(transformers.TrainingArguments).parse_yaml_file(str(whole))
    for name, value in keys.items():
        assert getattr(found, name) == value, name


@pytest.mark.parametrize("knobs", SETTINGS)
def test_lightning_takes_its_arguments(tmp_path: Path, knobs: dict[str, KnobValue]) -> None:
    pytorch = pytest.importorskip("lightning.pytorch")
    keys = yaml.safe_load(written("lightning", tmp_path, knobs).read_text())
    trainer = pytorch.Trainer(**keys["trainer"], logger=False, enable_checkpointing=False)
    assert trainer.precision == keys["trainer"]["precision"]
    assert trainer.accumulate_grad_batches == knobs.get("accumulation_steps", 1)
