"""Where the built-in workloads lie: package data in a wheel, `workloads/` beside the package in a source tree."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def builtin_folder() -> Path:
    """The folder of the built-in workloads."""
    packaged = PACKAGE / "workloads"
    return packaged if packaged.is_dir() else PACKAGE.parent / "workloads"


def builtin_names() -> list[str]:
    """Names of the built-in workloads, sorted; `loader-bound` lies in loader_bound.py."""
    return sorted(path.stem.replace("_", "-") for path in builtin_folder().glob("*.py") if path.stem[0] != "_")


def builtin_path(name: str) -> Path | None:
    """The file of a built-in workload; None where there is none of that name."""
    path = builtin_folder() / f"{name.replace('-', '_')}.py"
    return path if name in builtin_names() else None


def summary(path: Path) -> str:
    """The first line of a workload file's docstring, read without running the file."""
    try:
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    except (OSError, SyntaxError, ValueError):
        return ""
    return (text or "").partition("\n")[0]
