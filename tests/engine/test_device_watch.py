"""The GPU while a launch runs on it: its conditions, who else was there, and what the trial's processes hold."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gputune_tui.domain.conditions import Conditions, Neighbour
from gputune_tui.engine import device_watch
from gputune_tui.engine.device_watch import DeviceWatch, GpuNode
from gputune_tui.telemetry.collector import Collector, sampler_command
from tests.telemetry.snapshots import until

from .gpus import ScriptedSource, row, scripted_node

ALICE = Neighbour(10, "alice", 1 << 30, "python train.py")


def test_readings_count_while_blocks_are_timed_and_only_then() -> None:
    node, source = scripted_node()
    watch = DeviceWatch(node)
    for clock, timed, throttle in ((300, False, ("thermal",)), (1500, True, ()), (1900, True, ("power cap",))):
        source.device = replace(source.device, sm_clock_mhz=clock, temperature_c=clock / 30, throttle=throttle)
        watch.look(timed)
    found = watch.conditions(Conditions(denormal_fraction=0.5))
    assert found.denormal_fraction == 0.5
    gpu = found.gpu
    assert gpu is not None
    assert (gpu.readings, gpu.sm_clock_low_mhz, gpu.sm_clock_high_mhz) == (2, 1500, 1900)
    assert gpu.temperature_c == pytest.approx(1900 / 30)
    assert gpu.throttle == {"power cap": 0.5}
    assert source.quiet == [True]


def test_a_stale_or_lost_gpu_tells_nothing_and_a_cpu_has_none() -> None:
    node, source = scripted_node()
    source.device = replace(source.device, state="stale")
    watch = DeviceWatch(node)
    watch.look(True)
    assert watch.conditions(Conditions()) == Conditions()
    on_cpu = DeviceWatch(None, lambda: [ALICE])
    on_cpu.look(True)
    assert on_cpu.device_bytes(1) is None
    assert on_cpu.conditions(Conditions()) == Conditions(others=(ALICE,))


def test_others_are_those_that_compute_and_are_not_ours() -> None:
    node, source = scripted_node()
    watch = DeviceWatch(node)
    source.processes = (
        row(10),
        row(11, kind="G"),
        row(12, is_trial=True),
        row(13, command="nvidia-cuda-mps-server"),
        row(14, device_index=1),
    )
    watch.look(False)
    source.processes = (row(10, 2 << 30), row(15, user="bob", kind="C+G"))
    watch.look(True)
    source.processes = ()
    watch.look(True)
    others = watch.conditions(Conditions()).others
    assert [(other.pid, other.user, other.memory_bytes) for other in others] == [
        (10, "alice", 2 << 30),
        (15, "bob", 1 << 30),
    ]


def test_a_number_of_another_namespace_is_a_strangers_where_it_was_there_before_the_trial() -> None:
    node, source = scripted_node()
    source.processes = (row(4_000_001, is_foreign=True),)
    for _ in node.refresh():
        pass
    watch = DeviceWatch(node)
    # The second one may be our own trial as the driver numbers it.
    source.processes = (row(4_000_001, is_foreign=True), row(4_000_002, is_foreign=True))
    watch.look(True)
    assert [other.pid for other in watch.conditions(Conditions()).others] == [4_000_001]


@pytest.mark.parametrize("listed_s", [None, 1.0])
def test_a_list_from_before_makes_nobody_a_stranger(monkeypatch: pytest.MonkeyPatch, listed_s: float | None) -> None:
    node, source = scripted_node()
    monkeypatch.setattr(device_watch, "PATIENCE_S", 0.05)
    # Our own trial, which has just ended: the driver has not answered since.
    source.processes, source.listed_s = (row(4_000_001, is_foreign=True),), (listed_s,)
    for _ in node.refresh():
        pass
    assert [other.pid for other in node.others] == []
    source.listed_s = (time.time() + 60,)
    for _ in node.refresh():
        pass
    assert [other.pid for other in node.others] == [4_000_001]


def test_a_process_that_is_gone_is_no_neighbour() -> None:
    node, source = scripted_node()
    source.processes = (row(10, is_gone=True), row(11))
    node.poll()
    assert [other.pid for other in node.others] == [11]


def test_a_trial_holds_what_its_whole_tree_holds_and_not_what_another_trial_does() -> None:
    node, source = scripted_node()
    source.processes = (
        row(20, 3, is_trial=True, parent_pid=1),
        row(21, 5, is_trial=True, parent_pid=22),
        row(22, None, is_trial=True, parent_pid=20, device_index=None),
        row(30, 100, is_trial=True, parent_pid=1),
        row(40, 1000, parent_pid=20),
    )
    node.poll()
    assert node.used_bytes(20) == 8
    assert node.used_bytes(30) == 100
    assert node.used_bytes(99) is None
    assert node.used_bytes(None) is None


def test_a_driver_that_does_not_answer_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "FIRST_PATIENCE_S", 0.05)
    source = ScriptedSource()
    source.answers = False
    node = GpuNode("GPU-0", lambda: source)
    for _ in node.refresh():
        pass
    assert node.others == ()
    assert DeviceWatch(node).conditions(Conditions()) == Conditions()
    node.close()
    node.close()
    assert source.log == ["start", "list", "close"]


def test_a_real_sampling_process_is_read() -> None:
    node = GpuNode("", lambda: Collector(sampler_command(simulated_gpus=2), interval_s=0.25))
    for _ in node.refresh():
        if node._snapshot is not None:
            node._uuid = str(node._snapshot.devices[1].uuid)
    assert node.others, "the simulated node's last GPU serves somebody"
    watch = DeviceWatch(node)

    def told() -> bool:
        watch.look(True)
        gpu = watch.conditions(Conditions()).gpu
        return gpu is not None and gpu.readings >= 2

    until(told)
    node.close()
