"""Textual's driver for a terminal that may stop reading, and for a program that may be stopped and go on."""

from __future__ import annotations

from queue import Full

from rich.cells import cell_len
from textual.drivers.linux_driver import LinuxDriver

CLOSE_PATIENCE_S = 1.0
"""How long the terminal may take for what is still to be written at the end, twice."""


class PatientDriver(LinuxDriver):
    """Never waits for the terminal: what does not fit is left out, and `missed` asks for all to be drawn anew.

    Keys and signals are therefore heard on a terminal that takes no output. Only the thread of the event loop writes.
    """

    missed = False
    """What the terminal shows may not be what was drawn last."""
    stuck = False
    """At the end the terminal did not take what was still to be written; the thread that writes hangs in it."""

    def write(self, data: str) -> None:
        """Write it, unless what was written before still waits."""
        if self._writer_thread is not None and self._writer_thread._queue.full():
            self.missed = True
            return
        super().write(data)

    def close(self) -> None:
        """End the thread that writes, if the terminal lets it."""
        writer = self._writer_thread
        if writer is None:
            return
        try:
            writer._queue.put(None, timeout=CLOSE_PATIENCE_S)
        except Full:
            self.stuck = True
            return
        writer.join(CLOSE_PATIENCE_S)
        self.stuck = writer.is_alive()

    def _sigcont_application(self, *arguments: object) -> None:
        # After a SIGSTOP, which nobody is told of, textual would start the terminal a second time: two threads read
        # the keys then, and the program does not end before both of them got one.
        if self._must_signal_resume:
            super()._sigcont_application(*arguments)
        self.missed = True


class AsciiDriver(PatientDriver):
    """Sends ASCII alone, whatever is drawn, character for character."""

    def write(self, data: str) -> None:
        """Write it with other characters replaced by those that come nearest."""
        super().write(data if data.isascii() else data.translate(_ASCII))


class _Nearest(dict[int, str]):
    """One that is not in the table becomes as many question marks as it has columns."""

    def __missing__(self, code: int) -> str:
        return chr(code) if code < 0x80 else "?" * cell_len(chr(code))


_ASCII = _Nearest({ord(a): b for a, b in zip("·±×…–—→←↑↓▸│─╭╮╰╯", "-~x.--><^v>|-++++", strict=True)})
