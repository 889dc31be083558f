"""A bug of ours in one sentence, its traceback in a file."""

from __future__ import annotations


def internal_error(error: Exception) -> str:
    """ "internal error: ..." with the file that holds the traceback, if one could be written."""
    import tempfile
    import traceback

    named = f"internal error: {type(error).__name__}: {' '.join(str(error).split())}"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="gputune-error-", suffix=".txt", delete=False) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return named
    return f"{named}; the details are in {file.name}, please report them"
