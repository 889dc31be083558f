"""Trials on a device are exclusive across instances and users: a lock that dies with its owner (DESIGN section 4).

It is an abstract unix socket: there is no file that could be left behind, belong to another user, or be replaced by a
link, and the kernel frees the name when its owner's last descriptor is closed, however the owner ends.
"""

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
"""Of abstract names, which belong to the network namespace: in another container there is another lock."""
RETRY_S = 0.2
BACKLOG = 128
"""Who asks or shares stays in it until the owner looks; how many is bounded by net.core.somaxconn."""
JOINED = b"s"
"""What one who shares the device says, and one who only asks does not."""
SHARE_TRIES = 3
"""A holder may leave, and another come, between two questions."""
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

    def __init__(self, device: str, label: str | None = None) -> None:
        """`device`: the UUID of a GPU, or "cpu"; `label` is what a person calls it."""
        self.device = device
        self._label = label or device
        self._socket: socket.socket | None = None
        self._joined: socket.socket | None = None
        self._callers: list[tuple[socket.socket, Holder]] = []
        self._sharers: dict[Holder, None] = {}

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
            taken.listen(BACKLOG)
            taken.setblocking(False)
        except OSError as error:
            taken.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._socket = taken
        return True

    def release(self) -> None:
        """Give it back, or end sharing; without either nothing happens."""
        for end in (self._socket, self._joined, *(caller for caller, _ in self._callers)):
            if end is not None:
                end.close()
        self._socket = self._joined = None
        self._callers.clear()
        self._sharers.clear()

    def holder(self) -> Holder | None:
        """Who holds it; None where it is free or does not tell. To be asked seldom: each time fills its backlog."""
        asking = self._call()
        if asking is None:
            return None
        with contextlib.closing(asking):
            return _peer(asking)

    def share(self) -> Holder | None:
        """Measure beside whoever holds it, who can see that; None where nobody does, and it is held now."""
        for _ in range(SHARE_TRIES):
            if self.acquire():
                return None
            self._joined = self._call()
            if self._joined is not None:
                with contextlib.suppress(OSError):
                    self._joined.send(JOINED)
                return _peer(self._joined)
        return Holder(None, None)

    def sharers(self) -> tuple[Holder, ...]:
        """Who has shared the device since it was acquired, or since this instance shares it.

        To be asked now and then by whoever shares: a holder that gives the device back knows of nobody the next time.
        """
        if self._joined is not None and _is_closed(self._joined):
            self._joined.close()
            self._joined = None
            if (holder := self.share()) is not None:
                self._sharers[holder] = None
        with contextlib.suppress(OSError):
            while self._socket is not None:
                caller = self._socket.accept()[0]
                caller.setblocking(False)
                self._callers.append((caller, _peer(caller)))
        left = []
        for caller, who in self._callers:
            try:
                said = caller.recv(len(JOINED))
            except BlockingIOError:
                left.append((caller, who))
                continue
            except OSError:
                said = b""
            if said == JOINED:
                # Its end is kept: that it closes tells the other one when the device is given back.
                self._sharers[who] = None
                left.append((caller, who))
            else:
                caller.close()
        self._callers = left
        return tuple(self._sharers)

    def _call(self) -> socket.socket | None:
        """A connection to the holder; None where there is none, or too many call."""
        calling = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        calling.setblocking(False)
        try:
            calling.connect(PREFIX + self.device)
        except OSError:
            calling.close()
            return None
        return calling

    def wait(self) -> Generator[EngineEvent | None, None, None]:
        """Take the lock, waiting for whoever has it; says once who that is."""
        if self.acquire():
            return
        holder = self.holder()
        who = f" ({holder.text()})" if holder else ""
        yield Problem(
            f"another gputune-tui{who} measures on {self._label}; this trial starts when it is done "
            "(started with --share this one would not wait, and its figures would be those of a shared device)"
        )
        while not self.acquire():
            yield None
            time.sleep(RETRY_S)


def _is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _peer(connection: socket.socket) -> Holder:
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(told)
    return Holder(pid or None, _user(uid))


def _user(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
