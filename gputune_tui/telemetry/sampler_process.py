"""One life of the sampling process, seen from outside: its pipes, its lines, its end. Nothing here waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gputune_tui.domain.plain import to_plain
from gputune_tui.domain.telemetry import NodeSnapshot, SamplerSettings
from gputune_tui.errors import ProtocolError
from gputune_tui.telemetry.wire import decode
from gputune_tui.text import signal_text

READ_BYTES = 1 << 16
MAX_READ_BYTES = 1 << 20
"""Of one read, so that a talkative process cannot hold the caller."""
MAX_LINE_BYTES = 1 << 20
CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})


class SamplerProcess:
    """A running sampling process."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it, in a session of its own, which the terminal's Ctrl-C does not reach.

        Raises:
            OSError: it cannot be started.
        """
        self.bad_lines = 0
        """Lines that were no snapshot."""
        self._rest = b""
        # `-m` puts the working directory first on sys.path: the user's own may hold a `json.py` of theirs.
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
            bufsize=0,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._stdin, self._stdout = self._child.stdin, self._child.stdout
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)

    @property
    def pid(self) -> int:
        """Also the number of its session."""
        return self._child.pid

    def order(self, settings: SamplerSettings) -> None:
        """Send settings; one that has died or is stuck does not take them."""
        with contextlib.suppress(OSError):
            os.write(self._stdin.fileno(), json.dumps(to_plain(settings)).encode() + b"\n")

    def read(self) -> tuple[NodeSnapshot | None, bool]:
        """The newest whole snapshot in the pipe, and whether the pipe has ended; a half line is kept for next time."""
        data, ended = bytearray(self._rest), False
        full = len(data) + MAX_READ_BYTES
        with contextlib.suppress(BlockingIOError):
            while len(data) < full and not ended:
                part = os.read(self._stdout.fileno(), READ_BYTES)
                ended = not part
                data += part
        *lines, self._rest = bytes(data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
            self.bad_lines += 1
        for line in reversed(lines):
            try:
                return decode(line), ended
            except ProtocolError:
                self.bad_lines += 1
        return None, ended

    def await_output(self, timeout_s: float) -> None:
        """Until it wrote something or ended, at most so long."""
        select.select([self._stdout], [], [], timeout_s)

    def has_exited(self) -> bool:
        """Whether it is gone, and reaped."""
        return self._child.poll() is not None

    def ending(self) -> str:
        """How it ended, in words that follow "the process"."""
        code = self._child.returncode
        if code is None:
            return "closed its output"
        if code >= 0:
            return f"ended with exit code {code}"
        hint = ", as by a driver library that crashes" if -code in CRASHES else ""
        return f"was ended by {signal_text(-code)}{hint}"

    def hang_up(self) -> None:
        """Close its stdin, at which it ends by itself."""
        with contextlib.suppress(OSError):
            self._stdin.close()

    def kill(self) -> None:
        """Close both pipes and kill it, without waiting: what hangs inside the kernel does not die."""
        self.hang_up()
        with contextlib.suppress(OSError):
            self._stdout.close()
        with contextlib.suppress(OSError):
            self._child.kill()

    def wait(self, timeout_s: float) -> bool:
        """Whether it was gone within that time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout_s)
        return self.has_exited()
