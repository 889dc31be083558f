"""File pages that a process has mapped: a forked child starts without them, a fresh process has them by its imports."""

from __future__ import annotations

import ctypes
import os
from array import array

WINDOW_BYTES = 1 << 16
"""A fault on a file maps the pages around it in an aligned window of this size (Linux: fault_around_bytes)."""


def mapped_windows() -> list[int]:
    """One address in each window of this process's file mappings of which it has a page.

    Raises:
        OSError: /proc/self/pagemap cannot be read.
    """
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    found: list[int] = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        lines = maps.read().splitlines()
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for line in lines:
            span, modes, _offset, _device, inode, *path = line.split(maxsplit=5)
            # A driver's memory is no file: reading it could act on the device.
            if modes[0] != "r" or inode == "0" or (path and path[0].startswith("/dev/")):
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            entries = array("Q")
            entries.frombytes(os.pread(pagemap.fileno(), (end - start) // page_bytes * 8, start // page_bytes * 8))
            last = -1
            for index, entry in enumerate(entries):
                address = start + index * page_bytes
                if entry >> 63 and address // WINDOW_BYTES != last:  # bit 63: the page is there
                    found.append(address)
                    last = address // WINDOW_BYTES
    return found


def touch(addresses: list[int]) -> None:
    """Read a byte at each address, which maps the pages around it."""
    for address in addresses:
        ctypes.string_at(address, 1)
