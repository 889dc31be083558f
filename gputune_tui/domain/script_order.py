"""Which knobs of a trial are set in a command from outside."""

from __future__ import annotations

from gputune_tui.domain.job import ScriptOrder
from gputune_tui.domain.script import INJECTED_KNOBS, ScriptFacts
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.space import resolve
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.template import told_knobs
from gputune_tui.errors import UsageError


def script_order(
    workload: WorkloadRef, script: ScriptFacts | None, settings: TrainSettings, device_kind: str
) -> ScriptOrder:
    """What is done to a command beside running it; nothing where it was not looked at.

    Raises:
        UsageError: a knob cannot be set in it.
    """
    if script is None:
        return ScriptOrder()
    site = script.loader.site if script.loader else None
    is_declared = workload.samples_per_step is not None
    injected = injected_knobs(workload, script, settings, device_kind)
    return ScriptOrder(injected, site, None if is_declared else script.counted_by)


def injected_knobs(
    workload: WorkloadRef, script: ScriptFacts, settings: TrainSettings, device_kind: str
) -> tuple[str, ...]:
    """The knobs that differ from the script's own and that it is not told.

    Raises:
        UsageError: one of them cannot be set from outside.
    """
    own = resolve({}, script.knobs(), script.samples_per_step, device_kind)
    assert own is not None
    told = told_knobs(workload)
    # Another interpreter is the command's own affair.
    differ = [name for name in settings.difference(own) if name not in told and name != "python"]
    for name in differ:
        if name not in INJECTED_KNOBS:
            raise UsageError(f"{name} cannot be set in a command from outside; put {{{name}}} into it")
        if (why := script.refusal(name)) is not None:
            raise UsageError(f"{name} cannot be set in this script from outside: {why}")
    return tuple(differ)
