"""The processes as rows: sorted, filtered, as a tree, and one of them in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gputune_tui.domain.telemetry import ProcessSnapshot
from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.widgets.lines import Line, fitted, wrapped
from gputune_tui.units import UNKNOWN, bytes_text, duration_text

ROOMY = 70
"""From this width on a process has all its columns; below, user, type, resident memory and time make room."""
UNREADABLE = "(not to be read: another namespace, or it has ended)"
FOREIGN = "(another namespace, or it has ended)"
DETAIL_ROWS = 6

Key = tuple[int, int | None, int | None, int | None]
"""Number, start, GPU and MIG instance: what makes a row the same row at the next reading."""
SortValue = Callable[[ProcessSnapshot], "float | str | None"]

SORTS: tuple[tuple[str, SortValue], ...] = (
    ("GPU", lambda p: None),
    ("GPU memory", lambda p: p.gpu_memory_bytes),
    ("SM %", lambda p: p.sm_fraction),
    ("CPU %", lambda p: p.cpu_fraction),
    ("resident memory", lambda p: p.resident_bytes),
    ("time", lambda p: p.running_s),
    ("PID", lambda p: p.pid),
    ("user", lambda p: p.user),
    ("command", lambda p: p.command or None),
)
_RISING = ("PID", "user", "command")
"""What is read from the smallest on; figures begin with the largest."""


@dataclass(frozen=True)
class View:
    """How the list is shown."""

    sort: int = 0
    is_inverted: bool = False
    is_tree: bool = False
    filter: str = ""

    def sorted_by(self, step: int) -> View:
        """Another column."""
        return replace(self, sort=(self.sort + step) % len(SORTS), is_inverted=False)

    def inverted(self) -> View:
        """The other way round."""
        return replace(self, is_inverted=not self.is_inverted)

    def with_tree(self, is_tree: bool) -> View:
        """As a tree or as a list."""
        return replace(self, is_tree=is_tree)

    def with_filter(self, text: str) -> View:
        """With other words."""
        return replace(self, filter=text)

    @property
    def words(self) -> str:
        """For the panel's end."""
        parts = [f"by {SORTS[self.sort][0]}" + (" (inverted)" if self.is_inverted else "")]
        parts += ["tree"] if self.is_tree else []
        parts += [f"filter: {self.filter}"] if self.filter else []
        return " · ".join(parts)


def key_of(process: ProcessSnapshot) -> Key:
    """Stays the same as long as it is the same process on the same GPU."""
    return (process.pid, process.started, process.device_index, process.gpu_instance)


def arranged(processes: Sequence[ProcessSnapshot], view: View) -> list[tuple[ProcessSnapshot, int]]:
    """What passes the filter, in order, with the depth in the tree. Unknown comes last, whichever way it is sorted."""
    kept = [process for process in processes if _passes(process, view.filter)]
    ordered = _ordered(kept, view)
    return _as_tree(ordered) if view.is_tree else [(process, 0) for process in ordered]


def _passes(process: ProcessSnapshot, text: str) -> bool:
    """Every word is somewhere in what is shown; one that begins with ! is not."""
    shown = f"{process.pid} {process.user or ''} {process.kind} {process.command}".lower()
    for word in text.lower().split():
        if (word[1:] in shown) if word.startswith("!") and len(word) > 1 else (word not in shown):
            return False
    return True


def _ordered(processes: Sequence[ProcessSnapshot], view: View) -> list[ProcessSnapshot]:
    name, value_of = SORTS[view.sort]
    if view.sort == 0:
        return list(reversed(processes)) if view.is_inverted else list(processes)
    known = [process for process in processes if value_of(process) is not None]
    unknown = [process for process in processes if value_of(process) is None]
    # The types are silenced because what is None was sorted out above.
    known.sort(key=lambda p: value_of(p), reverse=(name in _RISING) == view.is_inverted)  # type: ignore[arg-type,return-value]
    return known + unknown


def _as_tree(processes: Sequence[ProcessSnapshot]) -> list[tuple[ProcessSnapshot, int]]:
    """Children below their parents, as far as these are in the list."""
    listed = {process.pid for process in processes}
    children: dict[int | None, list[ProcessSnapshot]] = {}
    for process in processes:
        is_below = process.parent_pid in listed and process.parent_pid != process.pid
        children.setdefault(process.parent_pid if is_below else None, []).append(process)
    found: list[tuple[ProcessSnapshot, int]] = []
    seen: set[int] = set()

    def place(some: Sequence[ProcessSnapshot], depth: int) -> None:
        for process in some:
            found.append((process, depth))
            if process.pid not in seen:
                seen.add(process.pid)
                place(children.get(process.pid, ()), depth + 1)

    place(children.get(None, ()), 0)
    # A circle of parents, as numbers of other namespaces may make one, hangs below nothing.
    placed = {id(process) for process, _ in found}
    return found + [(process, 0) for process in processes if id(process) not in placed]


def header_line(has_gpus: bool, width: int) -> Line:
    """The names of the columns."""
    is_roomy = width >= ROOMY
    names = f"  {'GPU':>4} " if has_gpus else "  "
    names += f"{'PID':>7} " + (f"{'USER':<8} " if is_roomy else "")
    if has_gpus:
        names += (f"{'T':<3} " if is_roomy else "") + f"{'GPU-MEM':>8} {'SM%':>4} "
    names += f"{'CPU%':>5} "
    names += f"{'RSS':>9} " if is_roomy or not has_gpus else ""
    names += f"{'TIME':>6} " if is_roomy else ""
    return ((names + "COMMAND", "dim"),)


def process_line(process: ProcessSnapshot, has_gpus: bool, width: int, glyphs: Glyphs, depth: int = 0) -> Line:
    """One process; without GPUs there are no columns for them."""
    is_roomy = width >= ROOMY
    mark = glyphs.cursor if process.is_trial else " "
    text = f"{mark} {_place(process):>4} " if has_gpus else f"{mark} "
    on_gpu = f"{process.kind or '-':<3} " if is_roomy else ""
    on_gpu += f"{_size(process.gpu_memory_bytes, process):>8} {_percent(process.sm_fraction, process):>4} "
    if process.is_foreign and process.device_index is not None:
        pid = f"host pid {process.pid:<7} " if is_roomy else f"{process.pid:>7} "
        return ((text + pid + on_gpu, "dim"), (FOREIGN, "dim"))
    text += f"{process.pid:>7} " + (f"{fitted(process.user or UNKNOWN, 8)} " if is_roomy else "")
    text += on_gpu if has_gpus else ""
    text += f"{_percent(process.cpu_fraction):>5} "
    text += f"{bytes_text(process.resident_bytes):>9} " if is_roomy or not has_gpus else ""
    text += f"{duration_text(process.running_s):>6} " if is_roomy else ""
    branch = "  " * max(0, depth - 1) + "└ " * (depth > 0) if glyphs.braille else "  " * depth
    command = process.command or UNREADABLE
    return ((text, "accent" if process.is_trial else ""), (branch + command, "" if process.command else "dim"))


def detail_lines(process: ProcessSnapshot, width: int) -> list[Line]:
    """What a row has no room for."""
    facts = [
        f"parent {UNKNOWN if process.parent_pid is None else process.parent_pid}",
        f"user {process.user or UNKNOWN}",
        f"running for {duration_text(process.running_s)}",
        f"resident {bytes_text(process.resident_bytes)}",
        "trial of this program" if process.is_trial else "",
    ]
    lines: list[Line] = [(("      " + " · ".join(filter(None, facts)), "dim"),)]
    for line in wrapped(process.command or UNREADABLE, max(10, width - 6), "", DETAIL_ROWS - 1):
        lines.append((("      ", ""), *line))
    return lines


def _place(process: ProcessSnapshot) -> str:
    if process.device_index is None:
        return "-"
    instance = "" if process.gpu_instance is None else f":{process.gpu_instance}"
    return f"{process.device_index}{instance}"


def _size(value: int | None, process: ProcessSnapshot) -> str:
    """Of a process that is on no GPU there is nothing to know."""
    return "-" if value is None and process.device_index is None else bytes_text(value)


def _percent(fraction: float | None, on_gpu: ProcessSnapshot | None = None) -> str:
    if fraction is None:
        return "-" if on_gpu is not None and on_gpu.device_index is None else UNKNOWN
    return f"{fraction * 100:.0f}"
