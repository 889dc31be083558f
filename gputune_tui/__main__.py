"""Entry point of `gputune-tui` and of `python -m gputune_tui`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from gputune_tui.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
