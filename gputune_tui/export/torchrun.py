"""A shell script that starts the job under torchrun with the chosen settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from gputune_tui.domain.template import fill_placeholders
from gputune_tui.export.env import assignments
from gputune_tui.export.evidence import comments
from gputune_tui.export.measured import Measured, set_from_outside
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered, head_lines

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")


def render(report: ExportReport) -> Rendered:
    """The measured command itself, or for a workload class whatever script is given to the file as arguments."""
    workload, settings = report.workload, report.settings
    options = f"--standalone --nproc-per-node={settings.world_size}"
    remarks: tuple[str, ...] = ()
    if not workload.command:
        words = f'torchrun {options} "$@"'
        remarks = Measured(report).not_written("torchrun")
    else:
        filled = fill_placeholders(workload, settings, report.global_batch_size)
        # A script that starts its ranks by itself is no rank of torchrun's.
        script = _script_of(filled) if settings.world_size == 1 else None
        words = shlex.join(filled)
        if script is not None:
            # By the same interpreter: the torchrun on the path may belong to another one.
            words = f"{shlex.quote(filled[0])} -m torch.distributed.run {options} {shlex.join(script)}"
        elif filled[0].rpartition("/")[2] != "torchrun":
            remarks = (f"torchrun cannot start what `{shlex.join(filled[:2])}` starts, so the command stands as it is",)
    remarks += set_from_outside(report)
    if settings.world_size == 1:
        remarks += ("torchrun sets RANK and WORLD_SIZE: a script that uses DDP then does so, which was not measured",)
    purpose = "starts the job with the chosen settings: sh FILE" + ("" if workload.command else " train.py ARGUMENTS")
    exports = "".join(f"export {line}\n" for line in assignments(report))
    text = "#!/bin/sh\n" + comments(head_lines(report, purpose, remarks)) + exports + f"exec {words}\n"
    return Rendered(text, remarks)


def _script_of(command: Sequence[str]) -> list[str] | None:
    """What torchrun is given in place of `python`: a script with its arguments, or -m and a module; None for others."""
    if not _PYTHON.fullmatch(command[0].rpartition("/")[2]):
        return None
    options = list(command[1:])
    while options and options[0] == "-u":  # torchrun starts its processes so
        options.pop(0)
    if not options or (options[0].startswith("-") and options[0] != "-m"):
        return None
    return options
