"""The command line: stdout carries data, stderr talk, and exit codes are a contract (`errors.ExitCode`)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from gputune_tui.errors import ExitCode, GputuneError


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; what goes wrong is one sentence on stderr."""
    import click

    from gputune_tui.cli.main import gputune

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a replaced stream may lack it
    words, command = split_command(arguments)
    try:
        gputune.main(list(words), prog_name="gputune-tui", standalone_mode=False, obj=command)
        sys.stdout.flush()
    except click.ClickException as error:
        _say(error.format_message())
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        return 130
    except GputuneError as error:
        _say(str(error))
        return error.exit_code
    except BrokenPipeError:
        # The reader of stdout left (`| head`): not a failure of ours, and nothing can be said there any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as error:  # a bug must not throw a traceback over the user's terminal
        _say(_internal(error))
        return ExitCode.INTERNAL
    return ExitCode.DONE


def split_command(arguments: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...] | None]:
    """What stands before the first `--`, and the user's command after it; None without `--`."""
    if "--" not in arguments:
        return arguments, None
    place = list(arguments).index("--")
    return arguments[:place], tuple(arguments[place + 1 :])


def _say(text: str) -> None:
    sys.stderr.write(f"gputune-tui: {text}\n")


def _internal(error: Exception) -> str:
    """One sentence for a bug of ours; the traceback goes to a file."""
    import tempfile
    import traceback

    named = f"internal error: {type(error).__name__}: {' '.join(str(error).split())}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="gputune-error-", suffix=".txt", delete=False) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return named
    return f"{named}; the details are in {file.name}, please report them"
