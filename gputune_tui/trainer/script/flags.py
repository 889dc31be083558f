"""Flags of a script's command line that look like knobs, so that it can be told them in place of being changed."""

from __future__ import annotations

import argparse
import re
from typing import Any

from gputune_tui.trainer.script.patches import Function, Patches

NAMES = {
    "micro_batch_size": r"(per_device_)?(train_)?(micro_)?(batch_?size|bs|bsz)(_per_(gpu|device))?",
    "accumulation_steps": r"(grad(ient)?_)?(accum(ulation|ulate|ulate_grad_batches)?)(_steps|_iter|_batches)?",
    "num_workers": r"(num_|n_|dataloader_num_)?(data_)?(workers|worker)",
    "precision": r"amp|fp16|bf16|use_amp|mixed_precision|precision|dtype|half",
    "activation_checkpointing": r"(use_)?(grad(ient)?|activation)_checkpoint(ing)?",
    "compile": r"(torch_)?compile",
    "channels_last": r"channels?_last",
    "pin_memory": r"(dataloader_)?pin_mem(ory)?",
    "prefetch_factor": r"(dataloader_)?prefetch(_factor)?",
}
"""Knob -> how public scripts and frameworks call their flag for it."""


class FlagWatch:
    """Reads the parsers of the argparse module as they are used."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        """Flag -> knob."""

    def install(self, patches: Patches) -> None:
        """Begin to watch."""
        patches.wrap(argparse.ArgumentParser, "parse_known_args", self._parsing)

    def _parsing(self, original: Function) -> Function:
        def parse(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
            for action in parser._actions:
                if action.option_strings and (knob := knob_of(action.dest)) is not None:
                    self.found[action.option_strings[-1]] = knob
            return original(parser, *args, **kwargs)

        return parse


def knob_of(name: str) -> str | None:
    """The knob that an argument of this name sets in most scripts; None for any other."""
    plain = name.lower().replace("-", "_")
    return next((knob for knob, pattern in NAMES.items() if re.fullmatch(pattern, plain)), None)
