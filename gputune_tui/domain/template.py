"""A command as workload: `{knob}` in it stands for the trial's value."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from gputune_tui.domain.settings import TrainSettings


def fill_placeholders(command: Sequence[str], settings: TrainSettings, global_batch_size: int | None) -> list[str]:
    """The command with `{knob}` replaced by the values of a trial; other braces stay as they are."""
    values = {
        name: json.dumps(value) if not isinstance(value, str) else value for name, value in settings.as_dict().items()
    }
    if global_batch_size is not None:
        values["global_batch_size"] = str(global_batch_size)
    named = re.compile("{(" + "|".join(values) + ")}")
    # In one pass, so that braces inside a value stay what they are.
    return [named.sub(lambda match: values[match[1]], word) for word in command]


def placeholders(command: Sequence[str], names: Iterable[str]) -> set[str]:
    """Which of `names` appear as `{name}` in the command."""
    return {name for name in names if any("{" + name + "}" in word for word in command)}
