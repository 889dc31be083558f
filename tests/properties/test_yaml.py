"""Whatever names, options and settings hold survives the file, for our reader and for a bare one."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gputune_tui.domain.knobs import KNOBS
from gputune_tui.domain.settings import TrainSettings, settings_from_dict
from gputune_tui.domain.space import BATCH_KNOBS
from gputune_tui.domain.study import MemoryBudget, WorkloadRef
from gputune_tui.domain.trial import MemoryPeaks
from gputune_tui.errors import ConfigFileError
from gputune_tui.export.files import write_atomically
from gputune_tui.export.report import BaselineComparison, ExportReport
from gputune_tui.export.yaml_config import read_config, render
from gputune_tui.ranking.statistics import StepTime, Throughput
from tests.export.make import report

WORDS = r"""
no off yes on y N true False null ~ NULL none 1 -1 1.5 1e3 1.5e+3 0x1F 0o17 017 0b1 1_000 12:30 1:20:30.5 .inf -.inf
.nan nan inf 2026-01-01 2026-01-01T00:00:00Z = << - ? : # a#b ' " 'a' "a" '' %a @a `a !a !!str &a *a [a] {a , a,b | >
>- --- ... \ \n é 日本語 😀 /tmp/é.py:Class C:\x a: :a
"""
TRAPS = (
    *WORDS.split(),
    *("", " ", " a", "a ", "a  b", "- a", "? a", "a: b", "a :b", "a #b", "{a: b}", "--- a", "... a", "/tmp/a b/c.py"),
    *("a\tb", "\t", "a\nb", "a\n", "\na", "\n\n", "a\r\nb", "\r", "a\x85b", "a\u2028b", "\u2029", "\ufeff", "a\ufeffb"),
    *("\xa0", "\x00", "\x1b[2J", "\x7f", "\u200b", "\u202e", "\ufffe", "\uffff", "\U0010ffff", "\udcff", "a\udc80b"),
)
trap = st.sampled_from(TRAPS)
odd_spaces = st.text("\n\r\x85\u2028 :#'\"a", max_size=9)
text = trap | st.text(max_size=20) | st.text(max_size=8).map(lambda t: t * 60) | odd_spaces

KNOB_VALUES = {
    "precision": st.sampled_from(["fp32", "tf32", "bf16", "fp16"]),
    "activation_checkpointing": st.sampled_from(["none", "full", "every:2", "segments:12", "selective"]),
    "optimizer": st.sampled_from(["default", "loop", "foreach", "fused"]),
    "channels_last": st.booleans(),
    "compile": st.sampled_from(["none", "default", "reduce-overhead", "max-autotune"]),
    "num_workers": st.integers(0, 99),
    "prefetch_factor": st.none() | st.integers(1, 9),
    "pin_memory": st.booleans(),
    "persistent_workers": st.booleans(),
    "python": st.none() | text.map(str.strip).filter(lambda path: path not in ("", "null")),
}
sizes = st.none() | st.integers(0, 1 << 60)
numbers = st.floats(1e-300, 1e300)


@st.composite
def train_settings(draw: st.DrawFn) -> TrainSettings:
    assert set(KNOB_VALUES) <= {knob.name for knob in KNOBS}
    drawn = {name: draw(values) for name, values in KNOB_VALUES.items()}
    batch = {name: draw(st.integers(1, 4096)) for name in BATCH_KNOBS}
    return settings_from_dict({**TrainSettings().as_dict(), **drawn, **batch})


@st.composite
def throughputs(draw: st.DrawFn) -> Throughput:
    low, value, high = sorted(draw(st.tuples(numbers, numbers, numbers)))
    return Throughput(value, low, high, draw(st.floats(0.01, 0.99)), *draw(st.tuples(*[st.integers(0, 1 << 40)] * 3)))


@st.composite
def reports(draw: st.DrawFn) -> ExportReport:
    base = report()
    chosen = draw(train_settings())
    options = draw(st.dictionaries(text, text, max_size=4))
    return replace(
        base,
        workload=WorkloadRef(
            draw(text), options, tuple(draw(st.lists(text, max_size=4))), draw(st.none() | st.integers(1))
        ),
        content_hash=draw(text),
        settings=chosen,
        global_batch_size=chosen.samples_per_step,
        budget=MemoryBudget(draw(st.integers(1, 1 << 60)), draw(sizes), draw(text)),
        throughput=draw(st.none() | throughputs()),
        step_time=draw(st.none() | st.builds(StepTime, numbers, numbers)),
        memory=draw(st.none() | st.builds(MemoryPeaks, sizes, sizes, sizes, sizes, sizes)),
        baseline=draw(st.none() | st.builds(BaselineComparison, text, st.none() | numbers, st.none() | numbers)),
        guard=draw(text),
        flags=tuple(draw(st.lists(text, max_size=4))),
        environment=replace(base.environment, host=draw(st.none() | text), device_name=draw(text), device=draw(text)),
        command=draw(text),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("yaml")


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(chosen=reports())
def test_any_report_survives(folder: Path, chosen: ExportReport) -> None:
    path = folder / "g.yaml"
    write_atomically(path, render(chosen).text, force=True)
    assert read_config(path) == chosen
    data = yaml.safe_load(path.read_bytes())
    assert data["settings"] == chosen.settings.as_dict()
    assert data["workload"]["name"] == chosen.workload.name
    assert data["workload"]["options"] == chosen.workload.options
    assert tuple(data["workload"]["command"]) == chosen.workload.command
    assert tuple(data["evidence"]["flags"]) == chosen.flags


@pytest.mark.parametrize("word", TRAPS)
def test_every_trap_survives_everywhere(folder: Path, word: str) -> None:
    base = report()
    trapped = replace(
        base, workload=WorkloadRef(word, {word: word}, (word,)), guard=word, flags=(word, word), command=word
    )
    path = folder / "g.yaml"
    write_atomically(path, render(trapped).text, force=True)
    assert read_config(path) == trapped
    assert yaml.safe_load(path.read_bytes())["workload"]["options"] == {word: word}


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=200) | text.map(lambda t: t.encode("utf-8", "surrogatepass")))
@example(content=b"a: &a [*a]")
@example(content=b"&a {*a : *a}")
@example(content=b"%YAML 9.9\n---\na")
def test_no_file_whatever_breaks_the_reader(folder: Path, content: bytes) -> None:
    path = folder / "g.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigFileError) as caught:
        read_config(path)
    assert "\n" not in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_means_something(folder: Path, data: st.DataObject) -> None:
    whole = render(report()).text.encode()
    at = data.draw(st.integers(0, len(whole) - 1))
    path = folder / "g.yaml"
    path.write_bytes(whole[:at] + data.draw(st.binary(max_size=3)) + whole[at + data.draw(st.integers(0, 40)) :])
    with contextlib.suppress(ConfigFileError):
        assert read_config(path).global_batch_size >= 1
