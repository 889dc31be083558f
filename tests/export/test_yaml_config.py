"""gputune.yaml: what is written, and what is refused when it is read."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gputune_tui.domain.knobs import KNOB_BY_NAME
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.errors import ConfigFileError, ExitCode
from gputune_tui.export.registry import renderer_named
from gputune_tui.export.yaml_config import MAX_FILE_BYTES, read_config, render
from tests.export.make import BASE, CHOSEN, report

TOP = ["schema", "workload", "settings", "global_batch_size", "budget", "evidence", "environment", "command"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "gputune.yaml"
    path.write_text(render(report()).text, encoding="utf-8")
    return path


def refusal(path: Path, old: str = "", new: str = "") -> str:
    """What reading says after `old` was replaced by `new`."""
    if old:
        head, text = path.read_text(encoding="utf-8").split("\nschema", 1)
        assert old in "schema" + text
        path.write_text(f"{head}\n" + ("schema" + text).replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigFileError) as caught:
        read_config(path)
    assert caught.value.exit_code is ExitCode.USAGE
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message


def line_of(path: Path, text: str) -> int:
    lines = path.read_text("utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line and not line.startswith("#"))


def test_what_is_written_reads_back_equal(config: Path) -> None:
    assert read_config(config) == report()


def test_a_bare_reader_finds_everything(config: Path) -> None:
    data = yaml.safe_load(config.read_bytes())
    assert list(data) == TOP
    assert data["schema"] == 1
    assert data["workload"]["name"] == "lm"
    assert data["workload"]["options"] == {"size": "tiny"}
    assert data["workload"]["hash"] == "ab" * 32
    assert list(data["settings"]) == list(KNOB_BY_NAME)
    assert data["settings"] == CHOSEN.as_dict()
    assert data["global_batch_size"] == 16
    assert data["budget"]["device_bytes"] == 1 << 30
    evidence = data["evidence"]
    assert evidence["samples_per_s"]["low"] < evidence["samples_per_s"]["value"] < evidence["samples_per_s"]["high"]
    assert evidence["samples_per_s"]["blocks"] == 2
    assert evidence["memory"]["device_peak_bytes"] == 100 << 20
    assert evidence["baseline"]["ratio"] == pytest.approx(1.5)
    assert evidence["baseline"]["differs_in"] == "precision=fp32,micro_batch_size=16,accumulation_steps=1"
    assert (evidence["guard"], evidence["flags"], evidence["warmup_steps"]) == ("passed", ["cached data"], 6)
    assert data["environment"]["torch"] == "2.6.0"
    assert data["command"] == "gputune-tui tune lm -D size=tiny --device cpu"


def test_the_comment_head_tells_the_evidence(config: Path) -> None:
    head = "\n".join(line for line in config.read_text("utf-8").splitlines() if line.startswith("#"))
    for words in ("151 samples/s", "95 % interval", "1.50x the baseline", "guard: passed", "100 MiB of 1.00 GiB"):
        assert words in head


def test_a_head_cannot_break_out_of_its_comment(tmp_path: Path) -> None:
    evil = replace(report(), flags=("x\nschema: 9", "y\u2028schema: 9", "z\x85schema: 9", "\rschema: 9"))
    (tmp_path / "g.yaml").write_text(render(evil).text, encoding="utf-8", newline="")
    assert read_config(tmp_path / "g.yaml") == evil


def test_without_measurements_it_is_null(tmp_path: Path) -> None:
    bare = replace(report(), throughput=None, step_time=None, memory=None, baseline=None, warmup_steps=None, flags=())
    (tmp_path / "g.yaml").write_text(render(bare).text, encoding="utf-8")
    assert read_config(tmp_path / "g.yaml") == bare


def test_scalar_subclasses_are_written_plainly(tmp_path: Path) -> None:
    class Text(str):
        pass

    class Number(float):
        pass

    odd = report()
    assert odd.baseline is not None
    odd = replace(
        odd, guard=Text("passed"), baseline=replace(odd.baseline, ratio=Number(1.5), samples_per_s=float("nan"))
    )
    data = yaml.safe_load(render(odd).text)
    assert (data["evidence"]["guard"], data["evidence"]["baseline"]["ratio"]) == ("passed", 1.5)
    assert data["evidence"]["baseline"]["samples_per_s"] is None


def test_a_knob_that_yaml_misreads_is_named_with_its_line(config: Path) -> None:
    line = line_of(config, "  compile:")
    said = refusal(config, "compile: none", "compile: no")
    assert f"line {line}: settings.compile: " in said
    assert "none, default, reduce-overhead, max-autotune" in said
    assert "'no', which YAML reads as true or false" in said


@pytest.mark.parametrize(
    ("old", "new", "name", "words"),
    [
        ("precision: bf16", "precision: off", "settings.precision", "fp32, tf32, bf16, fp16"),
        ("precision: bf16", "precision: fp8", "settings.precision", "'fp8'"),
        ("precision: bf16", "precision: [bf16]", "settings.precision", "a list"),
        ("precision: bf16", "precision:", "settings.precision", "nothing"),
        ("num_workers: 0", "num_workers: '0'", "settings.num_workers", "which YAML reads as text"),
        ("num_workers: 0", "num_workers: 1.0", "settings.num_workers", "which YAML reads as a number"),
        ("num_workers: 0", "num_workers: true", "settings.num_workers", "true or false"),
        ("num_workers: 0", "num_workers: -1", "settings.num_workers", "whole number from 0"),
        ("num_workers: 0", "num_workers: 2026-01-01", "settings.num_workers", "timestamp"),
        ("num_workers: 0", "num_worker: 0", "settings.num_worker", "unknown knob"),
        ("persistent_workers: false", "persistent_workers: 1", "settings.persistent_workers", "false, true"),
        ("micro_batch_size: 8", "micro_batch_size: 4", "settings", "is not the global_batch_size of 16"),
        ("global_batch_size: 16", "global_batch_size: 1e2", "global_batch_size", "expected a whole number"),
        ("global_batch_size: 16", "global_batch_size: 0", "global_batch_size", "from 1"),
        ("schema: 1", "schema: 2", "schema", "reads schema 1, not 2"),
        ("schema: 1", "schema: true", "schema", "schema: 1"),
        ("device_bytes: 1073741824", "device_bytes: 20GiB", "budget.device_bytes", "'20GiB'"),
        ("device_bytes: 1073741824", "device_bytes: 0", "budget.device_bytes", "above 0"),
        ("guard: passed", "guard: yes", "evidence.guard", "quote it"),
        ("guard: passed", "gard: passed", "evidence.gard", "unknown key"),
        ("size: tiny", "size: 1", "workload.options.size", "quote it"),
        ("confidence: 0.95", "confidence: .nan", "evidence.samples_per_s.confidence", "expected a number"),
        ("confidence: 0.95", "confidence: 95.0", "evidence.samples_per_s", "between 0 and 1"),
        ("confidence: 0.95", "confidence: 9.5e-1x", "evidence.samples_per_s.confidence", "expected a number"),
        ("  - cached data", "  - [cached]", "evidence.flags[0]", "expected text, got a list"),
        ("options:\n    size: tiny", "options: tiny", "workload.options", "expected a mapping"),
    ],
)
def test_wrong_types_and_values_are_named_with_their_line(
    config: Path, old: str, new: str, name: str, words: str
) -> None:
    said = refusal(config, old, new)
    assert re.search(rf"line \d+: {re.escape(name)}: ", said), said
    assert words in said
    if name.count(".") and new[0] != " ":
        assert f"line {line_of(config, f'  {new}')}: " in said or name == "evidence.samples_per_s"


def test_unknown_missing_and_duplicate_keys(config: Path) -> None:
    text = config.read_text("utf-8")
    said = refusal(config, "global_batch_size: 16", "global_batch_size: 16\nextra: 1")
    assert f"line {line_of(config, 'extra')}: extra: unknown key" in said
    config.write_text(text, "utf-8")
    assert "the key 'command' is missing" in refusal(config, "\ncommand:", "\n# command:")
    config.write_text(text, "utf-8")
    first = line_of(config, "precision: bf16")
    said = refusal(config, "precision: bf16", "precision: bf16\n  precision: fp32")
    assert f"line {first + 1}: settings: the key 'precision' is given twice, first in line {first}" in said
    config.write_text(text, "utf-8")
    assert "not text; quote it" in refusal(config, "size: tiny", "no: tiny")


def test_a_knob_of_a_later_version_that_is_missing_stays_at_the_baseline(config: Path) -> None:
    config.write_text(config.read_text("utf-8").replace("  static_graph: false\n", ""), "utf-8")
    assert read_config(config).settings == CHOSEN
    assert BASE != CHOSEN


def test_yaml_spellings_of_a_boolean_are_booleans(config: Path) -> None:
    text = config.read_text("utf-8").replace("num_workers: 0", "num_workers: 2")
    config.write_text(text.replace("persistent_workers: false", "persistent_workers: on"), "utf-8")
    assert read_config(config).settings.persistent_workers is True


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("guard: passed", "guard: !!python/object/apply:os.system ['true']", "tags ("),
        ("guard: passed", "guard: !!str passed", "tags ("),
        ("guard: passed", "guard: &x passed", "anchors and aliases"),
        ("guard: passed", "guard: *x", "anchors and aliases"),
        ("guard: passed", "guard: 'passed", "not YAML"),
        ("guard: passed", "guard: a: b", "not YAML"),
        ("guard: passed", "\tguard: passed", "not YAML"),
        ("\ncommand:", "\n---\ncommand:", "not YAML"),
        ("schema: 1", "<<: {}\nschema: 1", "not text"),
        ("schema: 1", "? [a]\n: 1\nschema: 1", "not text"),
    ],
)
def test_indirection_and_broken_yaml(config: Path, old: str, new: str, words: str) -> None:
    said = refusal(config, old, new)
    assert words in said
    assert ", line " in said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"just words", "expected a mapping"),
        (b"- a\n- b\n", "expected a mapping"),
        (b"{}", "schema: 1"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"a: \x00", "not YAML"),
        (b"[" * 100_000, "nested too deeply"),
        (b"schema: 1\n" + b"#" * MAX_FILE_BYTES, "larger than 1 MiB"),
        (b"schema: " + b"9" * 10_000, "is not a value"),
        (b"schema: 9999-99-99", "is not a value"),
        (b"schema: =", "YAML"),
    ],
)
def test_what_is_no_configuration_at_all(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "g.yaml"
    path.write_bytes(content)
    assert words in refusal(path)


@pytest.mark.parametrize("key", ["\U00018d09" * 120, "\U00018d09" * 300, "k" * 128, "k" * 4000, "ä b" * 42])
def test_long_keys_of_options_come_back_in_bare_yaml_too(tmp_path: Path, key: str) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(render(replace(report(), workload=WorkloadRef("lm", {key: "1"}))).text, encoding="utf-8")
    assert read_config(path).workload.options == {key: "1"}
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["workload"]["options"] == {key: "1"}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "does not exist" in refusal_of(tmp_path / "none.yaml")
    assert "is a directory" in refusal_of(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal_of(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot read" in refusal_of(tmp_path / "loop")
    assert "cannot read" in refusal_of(Path("a\0b"))
    assert "cannot read" in refusal_of(tmp_path / ("x" * 300))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(config: Path) -> None:
    config.chmod(0)
    assert "permission denied" in refusal_of(config)


def refusal_of(path: Path) -> str:
    with pytest.raises(ConfigFileError) as caught:
        read_config(path)
    return str(caught.value)


def test_the_registry() -> None:
    assert renderer_named("yaml")(report()) == render(report())
