"""GPUs, host and processes as lines: for every width, every density and every unknown value."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputune_tui.domain.telemetry import DeviceSnapshot, HostSnapshot, MigSnapshot, NodeSnapshot, ProcessSnapshot
from gputune_tui.tui.glyphs import ASCII, UNICODE, Glyphs
from gputune_tui.tui.gpu_facts import device_facts, flowed
from gputune_tui.tui.gpu_lines import Entry, Past, device_row, entry_lines
from gputune_tui.tui.host_lines import core_strip, host_lines, host_title
from gputune_tui.tui.panel_layout import Density, PanelLayout
from gputune_tui.tui.process_table import View, arranged, detail_lines, header_line, process_line
from gputune_tui.tui.widgets.gpu_grid import beside
from gputune_tui.tui.widgets.lines import Line
from tests.telemetry.snapshots import HOST, device
from tests.tui import nodes
from tests.tui.hostile import texts

sizes = st.none() | st.integers(0, 1 << 62)
floats = st.none() | st.floats()
fractions = st.none() | st.floats(0, 1) | st.floats()
words = st.none() | texts
counts = st.none() | st.integers(0, 99)
flags = st.none() | st.booleans()
instances = st.builds(MigSnapshot, counts, counts, words, words, sizes, sizes)
devices = st.builds(
    DeviceSnapshot,
    st.integers(0, 99),
    words,
    words,
    st.sampled_from(["live", "lost", "stale"]),
    fractions,
    *[sizes] * 3,
    *[floats] * 3,
    sizes,
    st.lists(texts, max_size=3).map(tuple),
    stale_s=st.none() | st.floats(0, 1e6),
    pci_bus=words,
    slowdown_temperature_c=st.none() | st.floats(0, 200),
    memory_is_unified=st.booleans(),
    pcie_rx_bytes_per_s=floats,
    mig_enabled=flags,
    mig=st.lists(instances, max_size=3).map(tuple),
    ecc_enabled=flags,
    ecc_corrected=counts,
    persistence=flags,
    compute_mode=words,
    pcie_generation=counts,
    fan_fraction=fractions,
    nvlink_links=counts,
    nvlink_rx_bytes_per_s=floats,
    energy_j=floats,
)
hosts = st.builds(
    HostSnapshot,
    texts,
    fractions,
    st.lists(st.floats(0, 1), max_size=300).map(tuple),
    st.floats(0.01, 1e4),
    st.integers(1, 1024),
    floats,
    *[sizes] * 5,
    fractions,
    disk_read_bytes_per_s=floats,
    net_rx_bytes_per_s=floats,
)
processes = st.builds(
    ProcessSnapshot,
    st.integers(0, 1 << 22),
    st.none() | st.integers(0, 99),
    words,
    sizes,
    floats,
    sizes,
    texts,
    st.booleans(),
    started=counts,
    parent_pid=st.none() | st.integers(0, 1 << 22),
    running_s=st.none() | st.floats(0, 1e9),
    kind=st.sampled_from(["", "C", "C+G", "M"]),
    sm_fraction=fractions,
    gpu_instance=counts,
    is_foreign=st.booleans(),
)
snapshots = st.builds(
    NodeSnapshot,
    st.floats(0, 1e10),
    hosts,
    words,
    words,
    st.lists(devices, max_size=3).map(tuple),
    st.lists(processes, max_size=4).map(tuple),
    words,
)
PAST = Past([None, 0.0, 0.5, math.inf, 1.0], [None, 0.0, 0.5, math.nan, 1.0], 5, 1, {3: "|"})


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


def shape(density: Density, width: int, graphs: int = 2) -> PanelLayout:
    return PanelLayout(density, 1, width, graphs if density is Density.CARD else 0, True, 10, 0, 5, 10)


def card(gpu: DeviceSnapshot, width: int = 60, glyphs: Glyphs = UNICODE, budget: int | None = None) -> list[str]:
    lines = entry_lines(Entry(gpu, past=PAST, budget_bytes=budget), shape(Density.CARD, width), glyphs)
    return [text(line) for line in lines]


def everything(snapshot: NodeSnapshot, width: int, glyphs: Glyphs) -> list[Line]:
    lines = [line for rows in range(7) for line in host_lines(snapshot.host, PAST.util, width, glyphs, rows, 5)]
    lines.append(header_line(True, width))
    for view in (View(), View(sort=3, is_inverted=True, is_tree=True, filter="a !b")):
        for process, depth in arranged(snapshot.processes, view):
            lines += [process_line(process, True, width, glyphs, depth), process_line(process, False, width, glyphs)]
            lines += detail_lines(process, width)
    for gpu in snapshot.devices:
        for density in Density:
            layout = shape(density, width)
            for instance in (None, *gpu.mig):
                entry = Entry(gpu, instance, True, True, PAST, 1 << 30)
                block = entry_lines(entry, layout, glyphs)
                assert len(block) <= layout.rows_per_gpu
                lines += beside([block], layout)
        lines += flowed(device_facts(gpu), width)
    host_title(snapshot.host)
    return lines


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshot=snapshots, width=st.integers(1, 250), glyphs=st.sampled_from([UNICODE, ASCII]))
def test_no_value_and_no_width_breaks_the_panels(snapshot: NodeSnapshot, width: int, glyphs: Glyphs) -> None:
    assert everything(snapshot, width, glyphs)


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_every_width_of_a_real_node(glyphs: Glyphs) -> None:
    rich = nodes.node(*nodes.gpus(3), nodes.lost(3), nodes.unknown(4), processes=(nodes.process(),))
    for width in range(1, 251):
        assert everything(rich, width, glyphs)


def test_unknown_is_never_zero() -> None:
    gpu = nodes.unknown()
    shown = "\n".join(
        [*card(gpu), text(device_row(Entry(gpu), 80, UNICODE)), text(device_row(Entry(gpu), 40, UNICODE))]
    )
    shown += "\n".join(map(text, flowed(device_facts(gpu), 80)))
    assert "N/A" in shown
    assert not any(figure in shown for figure in ("0 %", "0 B", " 0 W", " 0 °C", " 0 MHz", "off", "none"))


@pytest.mark.parametrize(
    ("celsius", "slowdown", "shown"),
    [(60.0, None, "60 °C "), (75.0, None, "75 °C! "), (85.0, None, "85 °C!! "), (85.0, 100.0, "85 °C "),
     (90.0, 100.0, "90 °C! "), (100.0, 100.0, "100 °C!! ")],
)  # fmt: skip
def test_heat_has_a_mark_beside_its_colour(celsius: float, slowdown: float | None, shown: str) -> None:
    assert shown in card(replace(device(), temperature_c=celsius, slowdown_temperature_c=slowdown))[0]


def test_states_are_words() -> None:
    assert any("LOST" in line for line in card(nodes.lost()))
    assert "stale 7 s" in card(replace(device(), state="stale", stale_s=7.0))[0]
    assert "pwr" in card(replace(device(), throttle=("power cap",)))[0]
    assert "power cap" in card(replace(device(), throttle=("power cap",)), 100)[0]
    assert "unified" in card(replace(device(), memory_is_unified=True))[2]
    cut = replace(
        device(), util_fraction=None, mig_enabled=True, mig=(MigSnapshot(7, 0, "MIG-1", "MIG 1g.10gb", 5, 9),)
    )
    assert "MIG 1" in card(cut)[0]
    instance = entry_lines(Entry(cut, cut.mig[0]), shape(Density.CARD, 60), UNICODE)
    assert "0:7" in text(instance[0])
    assert "N/A (MIG)" in text(instance[1])


def test_the_budget_is_marked_on_the_memory_bar() -> None:
    gpu = replace(device(), memory_used_bytes=0, memory_total_bytes=80 * nodes.GIB)
    for glyphs in (UNICODE, ASCII):
        _, utilisation, memory, *_ = card(gpu, 60, glyphs, 40 * nodes.GIB)
        bar = memory[4:].partition(" 0 B")[0][1:-1]
        assert abs(bar.index(glyphs.mark) - len(bar) // 2) <= 1
        assert glyphs.mark not in utilisation[5:40]


def test_more_cores_than_columns_share_columns() -> None:
    fractions = [0.0] * 64 + [1.0] * 64
    strip = core_strip(fractions, 32, UNICODE)
    assert strip == "▁" * 16 + "█" * 16
    assert core_strip([0.0, 1.0], 32, UNICODE) == "▁█"


def test_the_host_in_one_line_and_in_many() -> None:
    host = replace(HOST, disk_read_bytes_per_s=412e6, net_rx_bytes_per_s=1.2e6)
    (one,) = host_lines(host, [], 100, UNICODE, rows=1)
    assert "load 1" in text(one)
    assert "disk 393 M/s" in text(one)
    whole = text(one).split("  ")
    for width in range(20, 100):
        (one,) = host_lines(host, [], width, UNICODE, rows=1)
        assert len(text(one)) <= width
        assert set(text(one).split("  ")[1:]) <= set(whole), "a figure is there whole or not at all"
    many = "\n".join(map(text, host_lines(host, [0.5] * 10, 100, UNICODE, rows=6)))
    assert "net 1.14 MiB/s in" in many
    assert len(many.splitlines()) == 6
