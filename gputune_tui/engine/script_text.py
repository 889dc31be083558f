"""What a script does by itself in words, the same on the screen and on the command line."""

from __future__ import annotations

from collections.abc import Iterator

from gputune_tui.domain.knobs import value_text
from gputune_tui.domain.script import ScriptFacts


def script_lines(script: ScriptFacts) -> Iterator[str]:
    """What was found, in words."""
    ranks = f" x {script.world_size} ranks" if script.world_size > 1 else ""
    loop = f" in a loop of {script.framework}" if script.framework else ""
    yield (
        f"the script trains {script.model or 'a model'} ({script.parameters:,} parameters) with {script.optimizer}"
        f"{loop}: micro_batch_size {script.micro_batch_size} x accumulation_steps {script.accumulation_steps}{ranks}, "
        f"precision {script.precision}"
    )
    if (loader := script.loader) is not None:
        arguments = ", ".join(
            f"{name}={value_text(getattr(loader, name))}"
            for name in ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers")
        )
        yield f"its data comes from the DataLoader at {loader.place}: {arguments}"
    elif script.counted_by == "model":
        yield "no DataLoader feeds it: samples are counted by the first dimension of what the model is called with"
    if script.blocks:
        yield f"its repeated blocks: {script.blocks}"
    if script.flags:
        flags = ", ".join(f"{flag} {{{knob}}}" for flag, knob in script.flags.items())
        yield f"flags that look like knobs, to be told in the command: {flags}"
    for names, why in _refused(script):
        yield f"cannot be set from outside: {names}: {why}"
    yield from script.remarks


def _refused(script: ScriptFacts) -> Iterator[tuple[str, str]]:
    by_reason: dict[str, list[str]] = {}
    for name, why in script.refused.items():
        by_reason.setdefault(why, []).append(name)
    for why, names in by_reason.items():
        yield ", ".join(names), why
