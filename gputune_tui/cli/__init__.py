"""The command line: stdout carries data, stderr talk, and exit codes are a contract (`errors.ExitCode`)."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence

from gputune_tui.errors import ExitCode, GputuneError

WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
"""What a full disk or a lost terminal says to whoever writes."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; what goes wrong is one sentence on stderr."""
    import click

    _open_standard_files()
    from gputune_tui.cli.main import gputune

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a replaced stream may lack it
    words, command = split_command(arguments)
    try:
        code = gputune.main(list(words), prog_name="gputune-tui", standalone_mode=False, obj=command)
        sys.stdout.flush()
        return code if isinstance(code, int) else ExitCode.DONE
    except click.ClickException as error:
        _say(error.format_message())
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return 130
    except GputuneError as error:
        _say(str(error))
        return error.exit_code
    except (BrokenPipeError, SystemExit):
        # The reader of stdout left (`| head`), which click turns into SystemExit: not a failure of ours, and nothing
        # can be said there any more.
        _discard_stdout()
        return 0
    except OSError as error:
        if error.filename is not None or error.errno not in WRITE_ERRORS:
            return _say_internal(error)
        _discard_stdout()
        _say(f"cannot write to standard output: {error.strerror}; free some space or send it elsewhere")
        return ExitCode.ENVIRONMENT
    except Exception as error:  # a bug must not throw a traceback over the user's terminal
        return _say_internal(error)


def split_command(arguments: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...] | None]:
    """What stands before the first `--`, and the user's command after it; None without `--`."""
    if "--" not in arguments:
        return arguments, None
    place = list(arguments).index("--")
    return arguments[:place], tuple(arguments[place + 1 :])


def _open_standard_files() -> None:
    """Give a program that was started with a closed stdin, stdout or stderr /dev/null in its place.

    Otherwise the first pipe to a trial would take its number.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115  # for the whole life of the process
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115  # likewise


def _discard_stdout() -> None:
    """What is still buffered goes nowhere, so that the interpreter does not complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _say(text: str) -> None:
    from gputune_tui.text import printable

    # On one line, whatever an exception's text holds; the paragraphs of a usage message stay.
    with contextlib.suppress(OSError):
        sys.stderr.write("gputune-tui: " + "\n".join(map(printable, text.split("\n"))) + "\n")


def _say_internal(error: Exception) -> ExitCode:
    from gputune_tui.engine.faults import internal_error

    _say(internal_error(error))
    return ExitCode.INTERNAL
