"""Rates of counters, and those of disks and network."""

from __future__ import annotations

from pathlib import Path

from gputune_tui.telemetry.io_reader import SECTOR_BYTES, IoReader
from gputune_tui.telemetry.rates import Rates
from tests.telemetry.trees import write

HEAD = (
    "Inter-|   Receive                                                |  Transmit\n face |bytes packets|bytes packets\n"
)


def test_a_rate_needs_two_readings() -> None:
    rates = Rates()
    assert rates.take({"a": 100}, 1.0) == {}
    assert rates.take({"a": 300}, 3.0) == {"a": 100.0}


def test_what_goes_backwards_or_is_missing_is_unknown_once() -> None:
    rates = Rates()
    rates.take({"a": 100, "b": 5}, 1.0)
    assert rates.take({"a": 50, "b": None}, 2.0) == {}
    assert rates.take({"a": 60, "b": 9}, 3.0) == {"a": 10.0}
    assert rates.take({"a": 60, "b": 10}, 4.0) == {"a": 0.0, "b": 1.0}


def test_two_readings_at_once_change_nothing() -> None:
    rates = Rates()
    rates.take({"a": 0}, 1.0)
    assert rates.take({"a": 100}, 2.0) == {"a": 100.0}
    assert rates.take({"a": 900}, 2.1) == {"a": 100.0}
    rates.forget()
    assert rates.take({"a": 900}, 3.0) == {}


def disk(name: str, read: int, written: int) -> str:
    return f"   8       0 {name} 10 0 {read} 5 20 0 {written} 5 0 1 1\n"


def interface(name: str, received: int, sent: int) -> str:
    return f"  {name}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"


def put(root: Path, disks: str, interfaces: str) -> None:
    write(root / "proc", {"diskstats": disks.rstrip("\n"), "net/dev": (HEAD + interfaces).rstrip("\n")})


def test_whole_disks_and_cards_count_once(tmp_path: Path) -> None:
    write(tmp_path / "sys/block", {"sda/size": 1, "nvme0n1/size": 1, "loop0/size": 1, "dm-0/size": 1})
    write(tmp_path / "sys/class/net", {"eth0/device/id": 1, "docker0/mtu": 1, "lo/mtu": 1})
    reader = IoReader(tmp_path / "proc", tmp_path / "sys")
    names = ("sda", "sda1", "nvme0n1", "loop0", "dm-0")
    put(tmp_path, "".join(disk(name, 0, 0) for name in names), interface("eth0", 0, 0) + interface("docker0", 0, 0))
    assert set(reader.read(1.0).values()) == {None}
    put(tmp_path, "".join(disk(name, 10, 4) for name in names), interface("eth0", 700, 70) + interface("docker0", 9, 9))
    assert reader.read(2.0) == {
        "disk_read_bytes_per_s": 20.0 * SECTOR_BYTES,
        "disk_write_bytes_per_s": 8.0 * SECTOR_BYTES,
        "net_rx_bytes_per_s": 700.0,
        "net_tx_bytes_per_s": 70.0,
    }


def test_in_a_container_all_but_the_loopback_count(tmp_path: Path) -> None:
    reader = IoReader(tmp_path / "proc", tmp_path / "sys")
    put(tmp_path, "", interface("eth0", 0, 0) + interface("lo", 0, 0))
    reader.read(1.0)
    put(tmp_path, "", interface("eth0", 5, 6) + interface("lo", 70, 70))
    found = reader.read(2.0)
    assert (found["net_rx_bytes_per_s"], found["net_tx_bytes_per_s"]) == (5.0, 6.0)
    assert found["disk_read_bytes_per_s"] is None


def test_what_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    reader = IoReader(tmp_path / "none", tmp_path / "none")
    reader.read(1.0)
    assert set(reader.read(2.0).values()) == {None}
