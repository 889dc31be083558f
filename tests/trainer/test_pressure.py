"""Pressure as shares of time, from a made-up /proc with a clock of its own, and from this kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputune_tui.domain.conditions import Pressure
from gputune_tui.trainer.pressure import PERIOD_S, PressureWatch


class Kernel:
    """Pressure files, and a clock that the test moves."""

    def __init__(self, folder: Path, group: str | None = None) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.now = 100.0
        (self.proc / "pressure").mkdir(parents=True)
        (self.proc / "self").mkdir()
        self.group = None if group is None else self.cgroups / group
        if self.group is not None:
            self.group.mkdir(parents=True)
            (self.proc / "self" / "cgroup").write_text(f"4:memory:/else\n0::/{group}\n")

    def tell(self, seconds: float, cpu: float, memory: float = 0.0, group_cpu: float = 0.0) -> None:
        """After so many seconds the totals are these."""
        self.now += seconds
        for name, total in (("cpu", cpu), ("memory", memory), ("io", 0.0)):
            (self.proc / "pressure" / name).write_text(lines(total))
            if self.group is not None:
                (self.group / f"{name}.pressure").write_text(lines(group_cpu if name == "cpu" else 0.0))

    def watch(self) -> PressureWatch:
        return PressureWatch(self.proc, self.cgroups, lambda: self.now)


def lines(total_s: float) -> str:
    rest = f"avg10=0.00 avg60=0.00 avg300=0.00 total={int(total_s * 1e6)}"
    return f"some {rest}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"


def test_a_long_block_is_itself(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.tell(0, 5.0)
    watch = kernel.watch()
    watch.read()
    kernel.tell(10, 9.0)
    begin = watch.read()
    kernel.tell(4, 10.0, memory=0.5)
    watch.read()
    assert watch.since(begin) == (Pressure(0.25, 0.125, 0.0), None)


def test_a_short_block_is_held_against_as_much_time_as_the_kernel_may_lag(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.tell(0, 0.0)
    watch = kernel.watch()
    for _ in range(7):
        begin = watch.read()
        kernel.tell(0.5, 0.0)
    # The total jumps by two seconds' worth inside half a second.
    kernel.tell(0, 2.0)
    watch.read()
    machine, _group = watch.since(begin)
    assert machine is not None
    assert machine.cpu_fraction == 2.0 / PERIOD_S
    assert watch.since(kernel.now) == (machine, None)


def test_too_short_a_history_and_a_kernel_without_accounting_are_unknown(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.tell(0, 0.0)
    watch = kernel.watch()
    begin = watch.read()
    kernel.tell(PERIOD_S / 2, 1.0)
    watch.read()
    assert watch.since(begin) == (None, None)
    nothing = PressureWatch(tmp_path / "nowhere", tmp_path / "nowhere")
    assert nothing.since(nothing.read()) == (None, None)
    for path in (kernel.proc / "pressure").iterdir():
        path.write_text("")
    assert kernel.watch().since(kernel.watch().read()) == (None, None)


def test_the_groups_own_is_told_apart(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "user/job")
    kernel.tell(0, 0.0)
    watch = kernel.watch()
    begin = watch.read()
    kernel.tell(4, 3.0, group_cpu=1.0)
    watch.read()
    machine, group = watch.since(begin)
    assert machine is not None
    assert group is not None
    assert (machine.cpu_fraction, group.cpu_fraction) == (0.75, 0.25)


def test_this_kernel_tells_shares_or_nothing() -> None:
    if not Path("/proc/pressure/cpu").exists():
        pytest.skip("this kernel keeps no account of pressure")
    moments = iter([0.0, 5.0])
    watch = PressureWatch(clock=lambda: next(moments))
    begin = watch.read()
    watch.read()
    for pressure in watch.since(begin):
        if pressure is not None:
            assert all(value is None or 0 <= value <= 1 for value in vars(pressure).values())
