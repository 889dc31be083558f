"""Fake /proc and cgroup trees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

GIB = 1 << 30


def write(root: Path, files: Mapping[str, str | int]) -> None:
    """Write each file under `root`, its folders included."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")


class Tree:
    """A /proc with this process's cgroups, and the mounted cgroup folders beside it."""

    def __init__(self, root: Path) -> None:
        self.proc = root / "proc"
        self.cgroup = root / "cgroup"
        self.cgroup.mkdir(parents=True)

    def groups(self, *lines: str) -> Tree:
        """Lines of /proc/self/cgroup."""
        write(self.proc, {"self/cgroup": "\n".join(lines)})
        return self

    def put(self, files: Mapping[str, str | int]) -> Tree:
        """Files under the cgroup mount."""
        write(self.cgroup, files)
        return self
