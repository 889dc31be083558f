"""The layer rule, seen from a fresh interpreter: what each part loads, and what `--help` costs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gputune_tui"
TRAINER = ("gputune_tui.trainer",)
HEAVY = {"torch", "torchvision", "textual", "rich"}
TRAINER_MAY_USE = {"torch", "torchvision", "gputune_tui"}
MAY_IMPORT = {
    "torch": ("trainer", "workloads"),
    "torchvision": ("trainer", "workloads"),
    "textual": ("tui",),
    "rich": ("tui",),
    "pynvml": ("telemetry/nvml.py",),
    "psutil": ("telemetry", "trial"),
    "yaml": ("export", "config.py"),
    "click": ("cli",),
}


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )


def modules_of(*folders: str) -> list[str]:
    """Dotted names of all modules under these folders of the package."""
    paths = [path for folder in folders for path in sorted((PACKAGE / folder).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names if "startup" not in name]


def loaded_by(modules: list[str]) -> set[str]:
    """Top-level names, and our own sub-packages, in sys.modules of an interpreter that imported these."""
    code = f"import sys\nfor m in {modules!r}: __import__(m)\nprint('\\n'.join(sys.modules))"
    names = run_python("-c", code).stdout.split()
    own = {".".join(name.split(".")[:2]) for name in names if name.startswith("gputune_tui")}
    return {name.partition(".")[0] for name in names} | own


def imported_names(path: Path) -> set[str]:
    """Every module that a file imports anywhere in it, functions and type checks included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


PARTS = {
    "errors and units": ["gputune_tui.errors", "gputune_tui.units"],
    **{
        name: modules_of(name)
        for name in ("domain", "ranking", "search", "trial", "store", "export", "telemetry", "engine", "tui", "cli")
    },
}
BELOW = {
    "errors and units": set[str](),
    "domain": set[str](),
    "ranking": set[str](),
    "search": {"ranking"},
    "trial": {"ranking"},
    "store": {"ranking"},
    "export": {"ranking", "config"},
    "telemetry": {"ranking"},
    "engine": {"ranking", "search", "trial", "store", "export", "telemetry", "config"},
    "tui": {"ranking", "search", "trial", "store", "export", "telemetry", "config", "engine"},
    "cli": {"ranking", "search", "trial", "store", "export", "telemetry", "config", "engine", "__main__", "tui"},
}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_loads_only_what_lies_below_it(part: str) -> None:
    loaded = loaded_by(PARTS[part])
    assert not loaded & (HEAVY - ({"textual", "rich"} if part == "tui" else set()))
    own = {name.partition(".")[2] for name in loaded if name.startswith("gputune_tui.")}
    allowed = BELOW[part] | {"domain", "errors", "units", "text", part}
    assert own <= allowed, f"{part} loads {sorted(own - allowed)}"


@pytest.mark.parametrize("part", ["errors and units", "domain"])
def test_the_base_is_standard_library_alone(part: str) -> None:
    third_party = loaded_by(PARTS[part]) - loaded_by([]) - set(sys.stdlib_module_names)
    assert {name for name in third_party if not name.startswith("gputune_tui")} == set()


def test_the_trainer_loads_torch_and_neither_the_program_nor_its_libraries() -> None:
    modules = [m for m in modules_of("trainer") if not m.endswith(("bootstrap", "__main__"))]
    loaded = loaded_by(modules)
    assert "torch" in loaded
    own = {name for name in loaded if name.startswith("gputune_tui.")}
    assert own <= {"gputune_tui.trainer", "gputune_tui.domain", "gputune_tui.errors"}
    # What torch imports by itself (pynvml, where it is installed) is its own affair.
    assert not (loaded - loaded_by(["torch"])) & {"psutil", "yaml", "click", "pynvml", "textual", "rich"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "trainer").rglob("*.py")), ids=lambda path: path.name)
def test_trainer_files_name_nothing_but_the_standard_library_and_torch(path: Path) -> None:
    tops = {name.partition(".")[0] for name in imported_names(path)}
    assert tops <= set(sys.stdlib_module_names) | TRAINER_MAY_USE
    own = {name for name in imported_names(path) if name.startswith("gputune_tui")}
    assert all(n.startswith(("gputune_tui.trainer", "gputune_tui.domain", "gputune_tui.errors")) for n in own)


@pytest.mark.parametrize("library", MAY_IMPORT)
def test_a_library_is_named_only_in_its_room(library: str) -> None:
    rooms = MAY_IMPORT[library]
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "workloads").glob("*.py")]:
        place = path.relative_to(PACKAGE if PACKAGE in path.parents else ROOT).as_posix()
        if not place.startswith(rooms):
            assert library not in {name.partition(".")[0] for name in imported_names(path)}, place


def test_nobody_imports_the_trainer() -> None:
    for path in PACKAGE.rglob("*.py"):
        if "trainer" not in path.relative_to(PACKAGE).parts:
            assert not any(name.startswith(TRAINER) for name in imported_names(path)), path


def test_workloads_import_nothing_of_ours() -> None:
    for path in (ROOT / "workloads").glob("*.py"):
        assert not any(name.startswith("gputune_tui") for name in imported_names(path)), path


def test_help_loads_neither_torch_nor_textual_nor_psutil() -> None:
    done = run_python("-X", "importtime", "-m", "gputune_tui", "--help")
    assert "tune" in done.stdout
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}
    assert "gputune_tui" in loaded
    assert not loaded & {*HEAVY, "psutil", "pynvml", "yaml", "numpy"}


def test_no_file_grows_beyond_its_budget() -> None:
    for path in PACKAGE.rglob("*.py"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 400, f"{path} has {lines} lines"
