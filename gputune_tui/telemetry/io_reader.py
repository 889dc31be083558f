"""Bytes per second of the machine's disks and network, as the kernel counts them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from gputune_tui.telemetry.rates import Rates

SECTOR_BYTES = 512
"""The unit of /proc/diskstats, whatever the disk's own is (Documentation/admin-guide/iostats.rst)."""
LAYERED = ("loop", "ram", "zram", "dm-", "md", "sr", "fd")
"""What lies on other disks, or is none: it would be counted twice."""
CARDS_PERIOD_S = 30.0


class IoReader:
    """Keeps the last counters. A network file system shows as network."""

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc = proc
        self._sys = sys
        self._rates = Rates()
        self._looked_s: float | None = None
        self._disks: frozenset[str] = frozenset()
        self._cards: frozenset[str] = frozenset()

    def read(self, now: float) -> Mapping[str, float | None]:
        """Fields of `HostSnapshot` by name; None until there are two readings."""
        if self._looked_s is None or now - self._looked_s >= CARDS_PERIOD_S:
            self._looked_s = now
            self._disks = frozenset(name for name in _names(self._sys / "block") if not name.startswith(LAYERED))
            # What containers and bridges are given passes through a card as well.
            self._cards = frozenset(
                name for name in _names(self._sys / "class/net") if (self._sys / "class/net" / name / "device").exists()
            )
        rates = self._rates.take({**self._disk_bytes(), **self._net_bytes()}, now)
        names = ("disk_read", "disk_write", "net_rx", "net_tx")
        return {f"{name}_bytes_per_s": rates.get(name) for name in names}

    def _disk_bytes(self) -> Mapping[str, int]:
        read = written = 0
        found = False
        with contextlib.suppress(OSError, ValueError, IndexError), (self._proc / "diskstats").open() as file:
            for line in file:
                fields = line.split()
                if fields[2] in self._disks:
                    found = True
                    read += int(fields[5]) * SECTOR_BYTES
                    written += int(fields[9]) * SECTOR_BYTES
        return {"disk_read": read, "disk_write": written} if found else {}

    def _net_bytes(self) -> Mapping[str, int]:
        by_name: dict[str, tuple[int, int]] = {}
        with contextlib.suppress(OSError, ValueError, IndexError), (self._proc / "net/dev").open() as file:
            for line in file.readlines()[2:]:
                name, _, figures = line.partition(":")
                fields = figures.split()
                by_name[name.strip()] = (int(fields[0]), int(fields[8]))
        seen = [name for name in by_name if name in self._cards] or [name for name in by_name if name != "lo"]
        if not seen:
            return {}
        return {"net_rx": sum(by_name[name][0] for name in seen), "net_tx": sum(by_name[name][1] for name in seen)}


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [entry.name for entry in folder.iterdir()]
    return []
