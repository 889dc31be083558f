"""The sub-commands in one place; each body lies in a module of its own and is imported when it runs."""

from __future__ import annotations

from typing import Any

import click

from gputune_tui import __version__
from gputune_tui.cli.options import json_option, search_options, study_options
from gputune_tui.export.formats import NAMES as FORMAT_NAMES

SCREEN = "screen"
"""The command that runs where none is named."""


class Commands(click.Group):
    """Without a sub-command's name the screen is meant, whatever options or workload stand there."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with the screen's name put first where no command is named."""
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        if not args or (args[0] not in own and self.get_command(ctx, args[0]) is None):
            args = [SCREEN, *args]
        return super().parse_args(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gputune-tui")
def gputune() -> None:
    """Find the training settings that run fastest within a memory budget, by short isolated trial runs.

    Without a command the screen is shown: gputune-tui [WORKLOAD] [OPTIONS]; gputune-tui screen --help lists them.
    WORKLOAD is a built-in name, ./file.py[:Class] or package.module:Class. A command can take its place after --.
    Exit codes: 0 done, 2 usage, 3 nothing fits, 4 the workload fails, 5 not possible here, 6 verify disagrees.
    """


@gputune.command(SCREEN)
@click.argument("workload", nargs=-1)
@search_options
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters alone.")
@click.option("--no-mouse", "mouse", is_flag=True, flag_value=False, default=True, help="Leave the mouse alone.")
@click.option("--low-bandwidth", is_flag=True, help="Fewer updates, for slow links.")
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="Between two readings of the node.")
@click.option("--readonly", is_flag=True, help="Start no trial and send no signal.")
@study_options
@click.pass_obj
def screen(command: tuple[str, ...] | None, /, **given: Any) -> int:
    """Show the node and tune on one screen (the default command)."""
    from gputune_tui.cli.screen import screen as body

    return body(command, given)


@gputune.command()
@click.argument("workload", nargs=-1)
@search_options
@click.option("--max-time", metavar="TIME", help="Start no further trial after this long.")
@click.option("--again", metavar="ID,...|disturbed", help="Measure these trials of the study again before going on.")
@study_options
@json_option
@click.pass_obj
def tune(command: tuple[str, ...] | None, /, **given: Any) -> None:
    """Try the settings of a space and rank what fits the budget."""
    from gputune_tui.cli.tuning import tune as body

    body(command, given)


@gputune.command()
@click.argument("workload", nargs=-1)
@click.option("--set", "knobs", metavar="K=V,...", default="", help="Knobs that differ from the baseline.")
@study_options
@json_option
@click.pass_obj
def trial(command: tuple[str, ...] | None, /, **given: Any) -> None:
    """Run one setting."""
    from gputune_tui.cli.tuning import trial as body

    body(command, given)


@gputune.command()
@click.argument("workload", nargs=-1)
@click.option("--a", "knobs_a", metavar="K=V,...", required=True, help="Knobs of A that differ from the baseline.")
@click.option("--b", "knobs_b", metavar="K=V,...", required=True, help="Knobs of B that differ from the baseline.")
@click.option("--margin", default="3%", show_default=True, metavar="PERCENT", help="Differences within it are a tie.")
@click.option("--max-time", metavar="TIME", help="End undecided after about this long.")
@study_options
@json_option
@click.pass_obj
def ab(command: tuple[str, ...] | None, /, **given: Any) -> None:
    """Compare two settings, interleaved, until there is a verdict: faster, slower or tied."""
    from gputune_tui.cli.comparison import ab as body

    body(command, given)


@gputune.command()
@click.argument("study")
@click.option("--trial", "trial_id", type=int, metavar="N", help="Which trial. Default: the best.")
@click.option("--to", "target", required=True, metavar="FORMAT", help=f"{FORMAT_NAMES}.")
@click.option("-o", "output", metavar="FILE", help="Default: standard output.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.option(
    "--budget", metavar="SIZE", help="Choose the best within this budget. Default: that of the newest trial's run."
)
@click.option("--host-budget", metavar="SIZE", help="The same of the host's memory.")
def export(**given: Any) -> None:
    """Write the chosen settings in the form that a program reads."""
    from gputune_tui.cli.exporting import export as body

    body(given)


@gputune.command()
@click.argument("config")
@click.option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 or a GPU's UUID. Default: as measured.")
@click.option("--budget", metavar="SIZE", help="Default: the configuration's own.")
@click.option("--launches", type=click.IntRange(min=3), default=3, show_default=True, help="Launches to measure.")
@click.option("--cold", is_flag=True, help="Drop the page cache before each block. Default: as measured.")
@json_option
def verify(**given: Any) -> None:
    """Measure a configuration again here and compare with what it claims. Runs the workload that it names."""
    from gputune_tui.cli.verification import verify as body

    body(given)


@gputune.command()
@click.argument("config")
@click.pass_obj
def run(command: tuple[str, ...] | None, /, **given: Any) -> None:
    """Run the real job after -- under a configuration's settings: gputune-tui run gputune.yaml -- python train.py."""
    from gputune_tui.cli.running import run as body

    body(command, given)


@gputune.command()
@click.option("--once", is_flag=True, help="Print the node as it is now, and exit.")
@click.option("--stream", is_flag=True, help="Write one JSON object per reading to stdout, until ended.")
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="Between two readings.")
@click.option("--record", metavar="FILE", help="Keep what is read in a new file, for --replay.")
@click.option("--replay", metavar="FILE", help="Show a recording in this node's place.")
@click.option("--readonly", is_flag=True, help="Send no signal to any process.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters alone.")
@click.option("--no-mouse", "mouse", is_flag=True, flag_value=False, default=True, help="Leave the mouse alone.")
@click.option("--low-bandwidth", is_flag=True, help="Fewer updates, for slow links.")
@json_option
def monitor(**given: Any) -> int:
    """Show the node: GPUs, CPU, memory and processes. Also as text (--once) or JSON (--json FILE|-, --stream)."""
    from gputune_tui.cli.monitoring import monitor as body

    return body(given)


@gputune.command()
def workloads() -> None:
    """List the built-in workloads."""
    from gputune_tui.cli.listing import workloads as body

    body()


@gputune.command()
@json_option
def studies(json_path: str | None) -> None:
    """List the studies in the default place."""
    from gputune_tui.cli.listing import studies as body

    body(json_path)
