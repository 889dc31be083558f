"""Trials on a device are exclusive across instances and users: a lock that dies with its owner (DESIGN section 4)."""

from __future__ import annotations

import contextlib
import errno
import pwd
import socket
import struct
import time
from collections.abc import Generator
from dataclasses import dataclass

from gputune_tui.engine.events import EngineEvent, Problem

PREFIX = "\0gputune-tui/device/"
"""Abstract names: no file to be left behind, no permissions to be in the way of another user."""
RETRY_S = 0.2
_CREDENTIALS = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""


@dataclass(frozen=True)
class Holder:
    """Who measures on the device; None where the kernel does not tell (another PID namespace)."""

    pid: int | None
    user: str | None

    def text(self) -> str:
        """In words."""
        pid = f"pid {self.pid}" if self.pid else "in another container"
        return f"{pid}, user {self.user}" if self.user else pid


class DeviceLock:
    """The right to measure on one device. Not reentrant; one per engine."""

    def __init__(self, device: str) -> None:
        """`device`: the UUID of a GPU, or "cpu"."""
        self.device = device
        self._socket: socket.socket | None = None

    @property
    def is_held(self) -> bool:
        """True between `acquire` and `release`."""
        return self._socket is not None

    def acquire(self) -> bool:
        """Take the lock if it is free; never waits."""
        assert self._socket is None, "the lock is held already"
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            taken.bind(PREFIX + self.device)
            taken.listen(1)
        except OSError as error:
            taken.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._socket = taken
        return True

    def release(self) -> None:
        """Give it back; without holding it nothing happens."""
        held, self._socket = self._socket, None
        if held is not None:
            held.close()

    def holder(self) -> Holder | None:
        """Who holds it; None where it is free or does not tell. To be asked seldom: each time fills its backlog."""
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.closing(asking):
            asking.setblocking(False)
            try:
                asking.connect(PREFIX + self.device)
                told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            except OSError:
                return None
        pid, uid, _gid = _CREDENTIALS.unpack(told)
        return Holder(pid or None, _user(uid))

    def wait(self) -> Generator[EngineEvent | None, None, None]:
        """Take the lock, waiting for whoever has it; says once who that is."""
        if self.acquire():
            return
        holder = self.holder()
        who = f" ({holder.text()})" if holder else ""
        yield Problem(
            f"another gputune-tui{who} measures on {self.device}; this trial starts when it is done, "
            "or at once with --share, whose figures then are those of a shared device"
        )
        while not self.acquire():
            yield None
            time.sleep(RETRY_S)


def _user(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
