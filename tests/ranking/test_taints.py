"""Each doubt in words on its row, and whether another measurement may be free of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputune_tui.domain.conditions import Conditions, GpuConditions, Neighbour, Pressure
from gputune_tui.domain.trial import Block, Launch
from gputune_tui.ranking.leaderboard import leaderboard
from gputune_tui.ranking.taints import neighbour_text, taints
from tests.ranking.make import BUDGET, complete, launch

QUIET = launch(*[100.0] * 8)
ALICE = Neighbour(4711, "alice", 2 << 30, "python train.py")


def under(conditions: Conditions, base: Launch = QUIET) -> Launch:
    return replace(base, conditions=conditions)


def with_blocks(**fields: object) -> Launch:
    return replace(QUIET, blocks=tuple(replace(block, **fields) for block in QUIET.blocks))  # type: ignore[arg-type]


def only(*launches: Launch) -> tuple[str, bool]:
    [taint] = taints(complete(1, *launches))
    return taint.text, taint.passing


def test_a_quiet_machine_and_one_that_told_nothing_taint_nothing() -> None:
    calm = Conditions(0.02, 0.5, 0.0, (), GpuConditions(9, 1900, 1980, 60.0, 300.0, {"power cap": 0.05}))
    assert taints(complete(1, QUIET)) == ()
    assert (
        taints(
            complete(
                1, under(calm, with_blocks(new_shapes=0, others_cpu_fraction=0.0, pressure=Pressure(0.9, 0.01, 0.2)))
            )
        )
        == ()
    )


def test_who_was_there_is_named_once_with_the_most_it_held() -> None:
    later = replace(ALICE, memory_bytes=3 << 30)
    bob = Neighbour(None, None, None)
    text, passing = only(under(Conditions(others=(ALICE,))), under(Conditions(others=(later, bob))))
    assert text == (
        "shared device: measured beside pid 4711 (alice, 3.00 GiB, python train.py); "
        "a process in another container (unknown user, N/A)"
    )
    assert passing
    gpu = GpuConditions(3)
    assert only(under(Conditions(others=(ALICE,), gpu=gpu)))[0].startswith("shared card: measured beside pid 4711")
    assert len(neighbour_text(replace(ALICE, command="x" * 5000))) < 100


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (with_blocks(others_cpu_fraction=0.4, idle_cpu_fraction=0.0), "other processes used the CPU in 8 of 8 blocks"),
        (with_blocks(steal_fraction=0.2), "in 8 of 8 blocks"),
        (under(Conditions(0.5, 0.0)), "other processes used 50 % of the CPUs just before it was timed"),
        (with_blocks(pressure=Pressure(0.5, None, None)), "processes waited for a CPU in 50 % of the time"),
        (with_blocks(pressure=Pressure(0.0, 0.5, 0.0)), "short of memory: 50 %"),
        (with_blocks(pressure=Pressure(0.0, 0.0, 0.5)), "disks were waited for in 50 % of the time"),
        (launch(*(100.0 - 3 * index for index in range(8))), "the machine got 21 % slower while it was measured"),
    ],
)
def test_what_passes_is_worth_another_measurement(measured: Launch, words: str) -> None:
    text, passing = only(measured)
    assert words in text
    assert passing
    [row] = leaderboard([complete(1, measured)], BUDGET, None).rows
    assert text in row.flags
    assert row.worth_measuring_again


def test_launches_of_a_race_are_not_measured_again_alone() -> None:
    busy, quiet = with_blocks(steal_fraction=0.2), launch(*[100.0] * 8)
    raced = complete(1, replace(busy, round="r.0"), quiet)
    [row] = leaderboard([raced], BUDGET, None).rows
    assert any("in 8 of 16 blocks" in flag for flag in row.flags)
    assert not row.worth_measuring_again, "other launches would not take the place of that one"
    [row] = leaderboard([replace(raced, launches=(replace(quiet, round="r.0"), busy))], BUDGET, None).rows
    assert row.worth_measuring_again


def test_others_with_cpus_to_spare_take_nothing() -> None:
    assert taints(complete(1, under(Conditions(0.5, 0.4)))) == ()


def test_what_others_wait_for_is_not_our_doubt_where_the_group_tells() -> None:
    told = with_blocks(
        pressure=Pressure(0.9, 0.9, 0.9), group_pressure=Pressure(0.0, 0.0, 0.0), others_cpu_fraction=0.0
    )
    assert taints(complete(1, told)) == ()


def test_launches_far_apart_are_told() -> None:
    text, _ = only(launch(*[100.0] * 8), launch(*[60.0] * 8))
    assert text == "the machine got 40 % slower between its launches"


def test_throttling_is_told_with_clocks_and_temperature_and_a_power_cap_does_not_pass() -> None:
    capped = GpuConditions(10, 1410, 1980, 71.0, 700.0, {"power cap": 0.8})
    text, passing = only(under(Conditions(gpu=capped)))
    assert text == "throttled: power cap in 80 % of the time (1410 to 1980 MHz, 71 °C)"
    assert not passing
    hot = replace(capped, throttle={"power cap": 0.8, "thermal": 0.4}, readings=30)
    text, passing = only(under(Conditions(gpu=capped)), under(Conditions(gpu=hot)))
    assert "thermal in 30 % of the time" in text
    assert passing


def test_what_the_trial_does_itself_stays_whenever_it_is_measured() -> None:
    shapes = replace(QUIET, blocks=tuple(replace(b, new_shapes=i // 6) for i, b in enumerate(QUIET.blocks)))
    text, passing = only(shapes)
    assert "unstable, batch shapes still changing: 2 were new" in text
    assert not passing
    early = replace(QUIET, blocks=tuple(replace(b, new_shapes=int(i < 2)) for i, b in enumerate(QUIET.blocks)))
    assert taints(complete(1, early)) == ()
    text, passing = only(under(Conditions(denormal_fraction=0.13)))
    assert "13 % of its values are denormals" in text
    assert "flush_denormal=true" in text
    assert not passing
    [row] = leaderboard([complete(1, under(Conditions(denormal_fraction=0.13)))], BUDGET, None).rows
    assert not row.worth_measuring_again


def test_blocks_of_old_studies_have_none_of_it() -> None:
    assert Block(1, 1, 1.0) == Block(1, 1, 1.0, pressure=None, group_pressure=None, new_shapes=None)
