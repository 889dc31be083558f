"""A program in a real pty, with an emulated screen to read and keys to press. Nothing else answers the program."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyte

from tests.engine.driving import is_running

ROOT = Path(__file__).parents[2]
MARKER = "GPUTUNE_TEST_TERMINAL"
"""Environment variable that everything inherits which the program starts, whatever session it moves to."""
DEADLINE_S = 60.0
GONE_S = 10.0
ALTERNATE_SCREEN, CURSOR = 1049, 25
MOUSE_MODES = (1000, 1002, 1003, 1006, 1015, 1016)
PASTE_MODE, FOCUS_MODE = 2004, 1004
READ_BYTES = 1 << 16
KEYS = {
    "enter": b"\r",
    "tab": b"\t",
    "escape": b"\x1b",
    "backspace": b"\x7f",
    "up": b"\x1b[A",
    "down": b"\x1b[B",
    "right": b"\x1b[C",
    "left": b"\x1b[D",
    "pageup": b"\x1b[5~",
    "pagedown": b"\x1b[6~",
    "f10": b"\x1b[21~",
    "ctrl+c": b"\x03",
}


class EmulatedScreen(pyte.Screen):
    """With the alternate screen, which pyte leaves out: entering and leaving it both show an empty one."""

    def set_mode(self, *modes: int, **kwargs: Any) -> None:
        super().set_mode(*modes, **kwargs)
        self._switch(modes, kwargs)

    def reset_mode(self, *modes: int, **kwargs: Any) -> None:
        super().reset_mode(*modes, **kwargs)
        self._switch(modes, kwargs)

    def _switch(self, modes: Sequence[int], kwargs: Mapping[str, Any]) -> None:
        if kwargs.get("private") and ALTERNATE_SCREEN in modes:
            self.erase_in_display(2)
            self.cursor_position()


class Terminal:
    """A terminal of `size` (columns, rows) whose session leader is the program; read by a thread of its own."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        folder: Path,
        size: tuple[int, int] = (120, 40),
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        """Start `gputune-tui` with these arguments in `folder`; `environment` changes variables, None unsets one."""
        self._token = uuid.uuid4().hex
        own = {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), MARKER: self._token, "LANG": "C.UTF-8", **os.environ}
        own |= {"TERM": "xterm-256color", "XDG_STATE_HOME": str(folder / "state")}
        for name in ("NO_COLOR", "COLORTERM", "TMUX", "LC_ALL", "LC_CTYPE"):
            own.pop(name, None)
        for name, value in (environment or {}).items():
            own.pop(name, None)
            if value is not None:
                own[name] = value
        self._screen = EmulatedScreen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self._shown: str | None = None
        self._master, slave = os.openpty()
        self._reading = threading.Event()
        self._reading.set()
        self._ended = threading.Event()
        self.output = bytearray()
        """Everything the program wrote, in order."""
        self.writes: list[tuple[float, int]] = []
        """(monotonic seconds, bytes) of every piece that was read."""
        self.is_drawing = True
        """Whether the emulated screen follows. Emulating takes several times the program's own time, which a
        measurement of what the program costs its neighbours must do without."""
        self._set_size(*size)
        self.attributes = termios.tcgetattr(slave)
        """Of the line, before the program."""
        self.started_s = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gputune_tui", *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=own,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    # Reading.

    def text(self) -> str:
        """What stands on the screen."""
        with self._lock:
            if self._shown is None:
                self._shown = "\n".join(line.rstrip() for line in self._screen.display)
            return self._shown

    def wait_for(self, *texts: str, limit_s: float = DEADLINE_S) -> str:
        """Until all the texts stand on the screen; what stands there then."""
        return self.wait_until(lambda shown: all(text in shown for text in texts), " and ".join(texts), limit_s)

    def wait_gone_from_screen(self, text: str, limit_s: float = DEADLINE_S) -> str:
        """Until a text does not stand on the screen any more."""
        return self.wait_until(lambda shown: text not in shown, f"the end of {text!r}", limit_s)

    def wait_until(self, condition: Callable[[str], object], what: str, limit_s: float = DEADLINE_S) -> str:
        """Until a condition holds of what stands on the screen."""
        deadline = time.monotonic() + limit_s
        while True:
            ended = self._ended.is_set()
            shown = self.text()
            if condition(shown):
                return shown
            assert not ended, f"the program ended ({self.process.poll()}) before {what} was shown:\n{shown}"
            assert time.monotonic() < deadline, f"{what} was not shown:\n{shown}"
            time.sleep(0.02)

    def modes(self) -> dict[int, bool]:
        """The private modes that the program set or reset, as it left them."""
        found = re.findall(rb"\x1b\[\?([0-9;]+)([hl])", bytes(self.output))
        return {int(number): word == b"h" for numbers, word in found for number in numbers.split(b";")}

    def pause(self) -> None:
        """Stop reading, as a terminal does whose link has stalled or whose user pressed Ctrl-S."""
        self._reading.clear()

    def go_on(self) -> None:
        """Read again."""
        self._reading.set()

    # Acting.

    def keys(self, *names: str) -> None:
        """Press keys: a name of KEYS, else the characters themselves."""
        os.write(self._master, b"".join(KEYS.get(name, name.encode()) for name in names))

    def wipe(self) -> None:
        """Clear what is shown, as another program that wrote to the terminal would have spoilt it."""
        with self._lock:
            self._screen.erase_in_display(2)
            self._shown = None

    def resize(self, columns: int, rows: int) -> None:
        """Change the size; the kernel tells the program."""
        with self._lock:
            self._screen.resize(rows, columns)
            self._shown = None
        self._set_size(columns, rows)

    def hang_up(self) -> None:
        """Close the terminal's end, as a window or a lost ssh connection does."""
        self._ended.set()
        self._thread.join()
        os.close(self._master)
        self._master = -1

    def send_signal(self, number: signal.Signals) -> None:
        """To the program alone."""
        self.process.send_signal(number)

    # The end.

    def wait_exit(self, limit_s: float = GONE_S) -> int:
        """The exit code of the program, negative for a signal, once all it wrote is read."""
        code = self.process.wait(limit_s)
        if self._master >= 0 and self._reading.is_set():
            self._ended.wait(limit_s)
        return code

    def processes(self) -> dict[int, str]:
        """Everything alive that the program started, itself included, with the command lines."""
        found = {}
        marker = f"{MARKER}={self._token}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and is_running(int(entry.name)):
                with contextlib.suppress(OSError):
                    if marker in (entry / "environ").read_bytes():
                        words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(entry.name)] = words.decode(errors="replace").strip()
        return found

    def process_with(self, word: str) -> int:
        """The one process with this word in its command line."""
        (pid,) = [pid for pid, words in self.processes().items() if word in words]
        return pid

    def wait_all_gone(self, limit_s: float = GONE_S) -> None:
        """Until nothing of the program runs any more."""
        deadline = time.monotonic() + limit_s
        while left := self.processes():
            assert time.monotonic() < deadline, f"still running: {left}"
            time.sleep(0.05)

    def assert_clean(self) -> None:
        """The terminal is as it was: main screen, cursor, no mouse, and the line's own attributes."""
        modes = self.modes()
        left = {mode for mode in (ALTERNATE_SCREEN, *MOUSE_MODES, PASTE_MODE, FOCUS_MODE) if modes.get(mode)}
        assert left == set()
        assert modes.get(CURSOR, True), "the cursor is hidden"
        assert termios.tcgetattr(self._master) == self.attributes
        assert "Traceback" not in self.text()

    def close(self) -> None:
        """End whatever still runs; for the end of a test, passed or not."""
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        if self._master >= 0:
            self.hang_up()

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        while not self._ended.is_set():
            if not self._reading.wait(0.05) or not select.select([self._master], [], [], 0.05)[0]:
                continue
            try:
                data = os.read(self._master, READ_BYTES)
            except OSError:  # nobody holds the other end any more
                data = b""
            if not data:
                self._ended.set()
                return
            with self._lock:
                self.writes.append((time.monotonic(), len(data)))
                self.output += data
                if self.is_drawing:
                    self._stream.feed(data)
                    self._shown = None
