"""What writes each format: one row each."""

from __future__ import annotations

from collections.abc import Callable

from gputune_tui.errors import UsageError
from gputune_tui.export import (
    accelerate,
    axolotl,
    deepspeed,
    env,
    json_config,
    lightning,
    llama_factory,
    markdown,
    python_loop,
    torchrun,
    transformers,
    yaml_config,
)
from gputune_tui.export.formats import NAMES
from gputune_tui.export.report import ExportReport
from gputune_tui.export.target import Rendered

Render = Callable[[ExportReport], Rendered]
RENDERERS: dict[str, Render] = {
    "yaml": yaml_config.render,
    "json": json_config.render,
    "accelerate": accelerate.render,
    "transformers": transformers.render,
    "lightning": lightning.render,
    "deepspeed": deepspeed.render,
    "axolotl": axolotl.render,
    "llama-factory": llama_factory.render,
    "torchrun": torchrun.render,
    "env": env.render,
    "python": python_loop.render,
    "markdown": markdown.render,
}


def renderer_named(name: str) -> Render:
    """What writes the format of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in RENDERERS:
        raise UsageError(f"unknown export format {name!r}; formats are: {NAMES}")
    return RENDERERS[name]
