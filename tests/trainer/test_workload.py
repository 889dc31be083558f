"""Loading a user's workload by file or module, and adapting what it returns."""

from __future__ import annotations

import pickle
import random
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.trainer.workload import AdaptedWorkload, LossResult, WorkloadFault, WorkloadRefused, load_workload
from tests.trainer.conftest import LINEAR, LoadFile

MODULE_LEVEL = """
global_batch_size = 12
def build_model():
    return nn.Linear(1, 1)
def build_dataset():
    return [torch.zeros(1)] * 4
def loss(model, batch):
    return model(batch).mean()
"""


# Forms of a name


@pytest.mark.parametrize("name", ["wl.py", "mein modell.py", "größe-1.py", "v1.2.final.py", "a folder/über/wl.py"])
def test_a_file_is_loaded_wherever_it_lies(load_file: LoadFile, tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).with_name("beside.py").write_text("N = 4\n")
    workload = load_file("from .beside import N\n" + LINEAR + "\nWorkload.global_batch_size = N\n", name=name)
    assert (workload.class_name, workload.global_batch_size) == ("Workload", 4)
    assert isinstance(workload.build_model(), nn.Linear)


def test_a_class_is_named_after_a_colon(load_file: LoadFile) -> None:
    assert load_file(LINEAR.replace("class Workload", "class Mine"), suffix=":Mine").class_name == "Mine"


def test_the_only_fitting_class_needs_no_name(load_file: LoadFile) -> None:
    assert load_file(LINEAR.replace("class Workload", "class Mine")).class_name == "Mine"


def test_a_subclass_is_preferred_to_its_base(load_file: LoadFile) -> None:
    source = LINEAR.replace("class Workload", "class Base") + "\nclass Mine(Base):\n    global_batch_size = 7\n"
    workload = load_file(source)
    assert (workload.class_name, workload.global_batch_size) == ("Mine", 7)


def test_an_imported_base_named_workload_is_not_taken_for_the_users_class(load_file: LoadFile, tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text("import torch\nfrom torch import nn\nfrom torch.utils.data import *\n" + LINEAR)
    source = "from base import Workload\nclass Mine(Workload):\n    global_batch_size = 3\n"
    assert load_file(source).class_name == "Mine"
    assert load_file("from base import Workload\n", name="only_imported.py").class_name == "Workload"


def test_several_classes_ask_for_a_name(load_file: LoadFile) -> None:
    source = LINEAR.replace("class Workload", "class A") + LINEAR.replace("class Workload", "class B")
    with pytest.raises(WorkloadRefused, match=r"several workload classes \(A, B\); say which: .*wl.py:A"):
        load_file(source)


def test_a_module_can_be_the_workload(load_file: LoadFile) -> None:
    workload = load_file(MODULE_LEVEL)
    assert (workload.class_name, workload.global_batch_size) == ("module", 12)
    with pytest.raises(WorkloadRefused, match="takes no -D options"):
        load_file(MODULE_LEVEL, size="tiny")


def test_a_module_is_found_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_imports: None
) -> None:
    package = tmp_path / "users_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("SIZE = 3\n")
    source = f"import torch\nfrom torch import nn\nfrom .parts import SIZE\n{MODULE_LEVEL}".replace("12", "SIZE")
    (package / "train.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    assert load_workload(WorkloadRef("users_package.train")).global_batch_size == 3


def test_a_built_in_workload_is_found_by_name(fresh_imports: None) -> None:
    workload = load_workload(WorkloadRef("lm", {"size": "tiny"}))
    assert (workload.name, workload.class_name, workload.global_batch_size) == ("lm", "Workload", 16)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./no_such.py", "there is no file"),
        ("no_such_workload", "gputune-tui workloads lists"),
        ("no_such.module:Class", "gputune-tui workloads lists"),
        ("no such", "gputune-tui workloads lists"),
        (":Workload", "gputune-tui workloads lists"),
        (".relative", "gputune-tui workloads lists"),
        ("lm:Missing", "there is no class 'Missing' in it; it has .*Workload"),
    ],
)
def test_names_of_nothing_are_refused(name: str, words: str, fresh_imports: None) -> None:
    with pytest.raises(WorkloadRefused, match=words) as caught:
        load_workload(WorkloadRef(name))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_python_is_refused(tmp_path: Path, fresh_imports: None) -> None:
    (tmp_path / "train.yaml").write_text("a: 1\n")
    with pytest.raises(WorkloadRefused, match=r"must end with \.py"):
        load_workload(WorkloadRef(str(tmp_path / "train.yaml")))


# Imports beside the file


def test_helpers_beside_the_file_are_found_in_both_ways(load_file: LoadFile, tmp_path: Path) -> None:
    (tmp_path / "sizes_near.py").write_text("N = 5\n")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "more.py").write_text("from ..sizes_near import N\nM = N + 1\n")
    source = "from .sizes_near import N\nfrom .far.more import M\nimport sizes_near\n" + LINEAR
    source += "\nWorkload.global_batch_size = N + M + sizes_near.N\n"
    assert load_file(source).global_batch_size == 16


def test_a_file_in_a_package_reaches_its_parents(load_file: LoadFile, tmp_path: Path) -> None:
    inner = tmp_path / "project" / "models"
    inner.mkdir(parents=True)
    (tmp_path / "project" / "__init__.py").write_text("GLOBAL = 21\n")
    (tmp_path / "project" / "common.py").write_text("from . import GLOBAL\nN = GLOBAL * 2\n")
    (inner / "__init__.py").touch()
    source = f"from ..common import N\n{LINEAR}\nWorkload.global_batch_size = N\n"
    assert load_file(source, name="project/models/wl.py").global_batch_size == 42


def test_a_script_in_a_package_does_not_run_the_package(load_file: LoadFile, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("raise RuntimeError('not meant to run')\n")
    assert load_file(LINEAR).class_name == "Workload"


def test_siblings_do_not_shadow_the_standard_library_or_torch(load_file: LoadFile, tmp_path: Path) -> None:
    for name in ("random", "types", "loader", "torch", "json", "workload", "__main__", "string", "wave"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('shadowed')\n")
    source = "import random, types, json, string, wave\nimport torch.utils.data\nassert wave.open\n" + LINEAR
    assert load_file(source).class_name == "Workload"
    assert sys.modules["random"] is random
    assert sys.modules["types"] is types


def test_the_working_directory_and_the_arguments_stay(load_file: LoadFile) -> None:
    before, arguments = Path.cwd(), list(sys.argv)
    workload = load_file("import os, sys\nHERE, ARGUMENTS = os.getcwd(), list(sys.argv)\n" + LINEAR)
    module = sys.modules[type(workload.user).__module__]
    assert str(before) == module.HERE
    assert [str(module.__file__)] == module.ARGUMENTS
    assert (Path.cwd(), sys.argv) == (before, arguments)


def test_objects_of_the_workload_can_be_pickled(load_file: LoadFile) -> None:
    workload = load_file(LINEAR)
    dataset = workload.user.build_dataset()
    assert pickle.loads(pickle.dumps(dataset)).n == dataset.n


def test_a_workload_that_parses_arguments_at_import_sees_none(
    load_file: LoadFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["gputune-tui", "tune", "--budget", "4GiB"])
    parse = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--bs', default=4)\nA = p.parse_args()\n"
    assert load_file(parse + LINEAR).class_name == "Workload"


# Faults of the user's code


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_dependency\n", r"ModuleNotFoundError: No module named 'no_such_dependency' \(wl.py:1 in <mod"),
        ("x = 1\nclass Workload\n", r"SyntaxError: expected ':' \(wl.py:2\)"),
        ("\n\n1 / 0\n", r"ZeroDivisionError: division by zero \(wl.py:3 in <module>\)"),
        ("import sys\nsys.exit(3)\n", r"ended the program \(SystemExit 3\) at wl.py:2"),
        ("import helper_that_fails\n", r"KeyError: 'gone' \(helper_that_fails.py:2 in <module>\)"),
        ("class Workload:\n  pass\n", r"Workload has no build_model, no loss, no build_dataset or build_loader"),
        ("class Workload:\n  build_model = loss = lambda *_: 0\n", r"has no build_dataset or build_loader; see the"),
        ("x = 1\n", "has no class with build_model"),
        ("x = '\0'\n", "null bytes"),
    ],
)
def test_a_fault_at_import_names_the_users_line(load_file: LoadFile, tmp_path: Path, source: str, words: str) -> None:
    (tmp_path / "helper_that_fails.py").write_text("d = {}\nd['gone']\n")
    with pytest.raises(WorkloadFault, match=words) as caught:
        load_file(source, head="")
    assert "\n" not in str(caught.value)


def test_required_arguments_at_import_are_a_fault_not_an_exit(load_file: LoadFile) -> None:
    source = "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\np.parse_args()\n"
    with pytest.raises(WorkloadFault, match=r"SystemExit 2\) at wl.py:4"):
        load_file(source, head="")


OPTIONS = """
class Workload:
    def __init__(self, size="small", depth="2"):
        self.depth = int(depth)
        if size == "none":
            raise LookupError("no such size")
    build_model = build_dataset = loss = print
"""


def test_options_reach_the_constructor_as_text(load_file: LoadFile) -> None:
    assert load_file(OPTIONS, depth="7").user.depth == 7


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"colour": "red"}, WorkloadRefused, "unexpected keyword argument 'colour'; it takes size, depth"),
        ({"depth": "deep"}, WorkloadRefused, r"invalid literal for int.*'deep' \(wl.py:8 in __init__\)"),
        ({"size": "none"}, WorkloadFault, r"LookupError: no such size \(wl.py:10 in __init__\)"),
    ],
)
def test_options_that_do_not_fit(
    load_file: LoadFile, options: dict[str, str], error: type[WorkloadFault], words: str
) -> None:
    with pytest.raises(error, match=words):
        load_file(OPTIONS, **options)


def test_a_class_without_constructor_takes_no_options(load_file: LoadFile) -> None:
    with pytest.raises(WorkloadRefused, match="it takes none"):
        load_file(LINEAR, size="tiny")


def test_memory_that_runs_out_in_the_constructor_is_no_fault_of_the_code(load_file: LoadFile) -> None:
    with pytest.raises(MemoryError):
        load_file("class Workload:\n    def __init__(self): raise MemoryError\n")


# Content hash


def hash_of(folder: Path, files: dict[str, str]) -> str:
    """Load `wl.py` from a folder of these files and forget it; gives its hash."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    modules, path_before = set(sys.modules), list(sys.path)
    try:
        return load_workload(WorkloadRef(str(folder / "wl.py"))).content_hash
    finally:
        for name in set(sys.modules) - modules:
            del sys.modules[name]
        sys.path[:] = path_before


HASHED = {
    "wl.py": "import torch\nfrom torch import nn\nimport used\nfrom .deep.er import x\n" + MODULE_LEVEL,
    "used.py": "a = 1\n",
    "deep/er.py": "x = 1\n",
    "unused.py": "b = 1\n",
}


def test_the_hash_does_not_depend_on_the_place(tmp_path: Path) -> None:
    assert hash_of(tmp_path / "one", HASHED) == hash_of(tmp_path / "an other" / "two", HASHED)


@pytest.mark.parametrize(
    ("name", "changes"), [("wl.py", True), ("used.py", True), ("deep/er.py", True), ("unused.py", False)]
)
def test_the_hash_covers_what_is_loaded_from_beside(tmp_path: Path, name: str, changes: bool) -> None:
    other = {**HASHED, name: HASHED[name] + "# changed\n"}
    assert (hash_of(tmp_path / "one", HASHED) != hash_of(tmp_path / "two", other)) is changes


# What the methods return


class Out:
    """An object as Hugging Face models return."""

    def __init__(self, loss: object) -> None:
        self.loss = loss


class Pair(NamedTuple):
    """Loss and logits by name."""

    loss: Tensor
    logits: Tensor


class Counted(NamedTuple):
    """Loss and count by name."""

    loss: Tensor
    item_count: int


def adapted(result: object) -> AdaptedWorkload:
    user = types.SimpleNamespace(loss=lambda model, batch: result)
    return AdaptedWorkload(user, "wl", "Workload", "")


LOSS = torch.ones((), requires_grad=True) * 2


@pytest.mark.parametrize(
    ("result", "items"),
    [
        (LOSS, None),
        (LOSS.reshape(1), None),
        ((LOSS, 7), 7),
        ([LOSS, 7], 7),
        ((LOSS, torch.tensor(7)), 7),
        ((LOSS, torch.zeros(4, 10)), None),
        ((LOSS, torch.tensor(0.5)), None),
        ((LOSS, torch.tensor(True)), None),
        ((LOSS, True), None),
        ((LOSS, None), None),
        ((LOSS, {"acc": 1.0}), None),
        ((LOSS, torch.zeros(4), torch.zeros(2)), None),
        ({"loss": LOSS}, None),
        ({"loss": LOSS, "count": 7, "logits": torch.zeros(3)}, 7),
        ({"loss": LOSS, "items": 7}, 7),
        ({"loss": LOSS, "item_count": torch.tensor(7)}, 7),
        (Out(LOSS), None),
        (Pair(LOSS, torch.zeros(3)), None),
        (Counted(LOSS, 7), 7),
    ],
)
def test_accepted_forms_of_a_loss(result: object, items: int | None) -> None:
    found = adapted(result).loss(nn.Identity(), None)
    assert isinstance(found, LossResult)
    for loss in (found.loss, adapted(result).mean_loss(nn.Identity(), None)):
        assert loss.dim() == 0
        assert loss.item() == 2.0
    assert (None if found.items is None else int(found.items)) == items


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"loss_box": LOSS, "loss_class": LOSS}, r"a dict with 'loss_box', 'loss_class'; it may return a 0-d tensor"),
        ({}, "a dict with no keys"),
        ({"loss": 0.5}, "whose 'loss' is no tensor"),
        (None, "returned NoneType"),
        (0.5, "returned float"),
        ((), "returned tuple"),
        ((0.5, LOSS), "a tuple that begins with float"),
        (torch.ones(4, requires_grad=True), r"a loss of shape \(4,\); return its mean"),
        (torch.ones(0, requires_grad=True), r"a loss of shape \(0,\)"),
        (torch.ones(()), "depends on no trainable parameter"),
    ],
)
@pytest.mark.parametrize("method", ["loss", "mean_loss"])
def test_other_results_of_a_loss_are_told_the_accepted_forms(result: object, words: str, method: str) -> None:
    with pytest.raises(WorkloadFault, match=words) as caught:
        getattr(adapted(result), method)(nn.Identity(), None)
    assert "test_workload.py:" in str(caught.value)


def test_a_method_that_returns_the_wrong_thing_is_named_with_its_place(load_file: LoadFile) -> None:
    workload = load_file(LINEAR.replace("return nn.Linear(1, 1)", "return 3"))
    with pytest.raises(WorkloadFault, match=r"build_model \(wl.py:\d+\) returned int, not an nn.Module"):
        workload.build_model()


def test_the_optimizer_is_the_users_or_adamw(load_file: LoadFile) -> None:
    parameters = [nn.Parameter(torch.ones(1))]
    assert isinstance(load_file(LINEAR).build_optimizer(parameters), torch.optim.AdamW)
    own = "    def build_optimizer(self, parameters):\n        return torch.optim.SGD(parameters, lr=0.1)\n"
    assert isinstance(load_file(LINEAR + own, name="own.py").build_optimizer(iter(parameters)), torch.optim.SGD)
    wrong = LINEAR + "    def build_optimizer(self, parameters):\n        return None\n"
    with pytest.raises(WorkloadFault, match=r"returned NoneType, not a torch.optim.Optimizer"):
        load_file(wrong, name="wrong.py").build_optimizer(parameters)
    with pytest.raises(WorkloadFault, match="no trainable parameter"):
        load_file(LINEAR, name="again.py").build_optimizer([])


def test_optional_members(load_file: LoadFile, tmp_path: Path) -> None:
    bare = load_file(LINEAR)
    assert bare.global_batch_size is None
    assert bare.checkpoint_blocks(nn.Identity()) is None
    bare.close()
    more = f"""
    def batch_size_of(self, batch):
        return 99
    def checkpoint_blocks(self, model):
        return (model,)
    def close(self):
        open({str(tmp_path / "closed")!r}, "w").close()
"""
    full = load_file(LINEAR + more, name="full.py")
    model = full.build_model()
    assert (full.batch_size_of(None), full.checkpoint_blocks(model)) == (99, [model])
    full.close()
    assert (tmp_path / "closed").exists()


def test_a_batch_without_anything_to_count_asks_for_batch_size_of() -> None:
    with pytest.raises(WorkloadFault, match=r"no batch size found in a object; give the workload batch_size_of"):
        adapted(None).batch_size_of(object())
