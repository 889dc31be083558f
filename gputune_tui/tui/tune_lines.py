"""The tuning pane as lines: the table of knobs with A and B, the leaderboard, and what runs."""

from __future__ import annotations

import math

from gputune_tui.domain.choices import BATCH, choices, knobs_for
from gputune_tui.domain.knobs import value_text
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import TrialState
from gputune_tui.ranking.leaderboard import Row
from gputune_tui.ranking.wording import data_wait_text, rank_text, speed_text, why_unranked
from gputune_tui.tui.glyphs import Glyphs
from gputune_tui.tui.tune_state import TuneState, comparison_text, remaining_text
from gputune_tui.tui.widgets.lines import Line, fitted, wrapped
from gputune_tui.tui.widgets.rows import ListRow
from gputune_tui.units import UNKNOWN, bytes_text, ratio_text, seconds_text, three_digits

KNOB_LABELS = {
    "precision": "precision",
    BATCH: "micro-batch x accumulation",
    "activation_checkpointing": "activation checkpointing",
    "num_workers": "loader workers",
    "prefetch_factor": "prefetch factor",
    "persistent_workers": "persistent workers",
    "optimizer": "optimizer implementation",
    "compile": "compile",
    "channels_last": "channels last",
    "flush_denormal": "flush denormal",
    "pin_memory": "pin memory",
}
LABEL_WIDTH = 27
VALUE_WIDTH = 16


def workload_text(workload: WorkloadRef) -> str:
    """As one would type it."""
    if workload.command:
        return workload.name
    return " ".join([workload.name, *(f"-D {key}={value}" for key, value in workload.options.items())])


def setup_title(state: TuneState) -> tuple[str, str]:
    """What is tuned, and under which budget and batch."""
    if state.opened is None:
        return "Tune", "no workload yet: w chooses one"
    opened = state.opened
    device = opened.identity.environment
    shown = device.device if device.device_name is None else f"{device.device} ({device.device_name})"
    title = f"Tune {workload_text(opened.identity.workload)} on {shown}"
    return title, f"budget {bytes_text(opened.budget.device_bytes)} · batch {opened.identity.global_batch_size}"


def knob_header(width: int) -> Line:
    """Names of the columns."""
    label, value = knob_widths(width)
    return ((fitted("  knob", label) + fitted("A", value) + fitted("B", value), ""),)


def knob_widths(width: int) -> tuple[int, int]:
    """Columns for the label and for each of the two values."""
    value = min(VALUE_WIDTH, max(8, (width - 16) // 3))
    return max(8, min(LABEL_WIDTH + 2, width - 2 * value)), value


def knob_rows(state: TuneState, width: int, glyphs: Glyphs) -> list[ListRow]:
    """One row a knob that can differ on this device; what differs between A and B is marked."""
    ground, a, b = state.ground, state.a, state.b
    if ground is None or a is None or b is None:
        return []
    label_width, value_width = knob_widths(width)
    rows = []
    for name in knobs_for(ground):
        value_a, value_b = knob_text(a, name), knob_text(b, name)
        differs = value_a != value_b
        fixed = len(choices(name, b, ground)) == 1
        line: Line = (
            ("  " + fitted(KNOB_LABELS[name], label_width - 2), "dim" if fixed else ""),
            (fitted(value_a, value_width), "dim"),
            (fitted((f"{glyphs.cursor} " if differs else "  ") + value_b, value_width), "accent" if differs else ""),
        )
        rows.append(ListRow(name, line))
    return rows


SHORT_WORDS = {
    "activation_checkpointing": "ckpt {}",
    "num_workers": "w{}",
    "prefetch_factor": "prefetch {}",
    "persistent_workers": "persistent {}",
    "optimizer": "opt {}",
    "compile": "compile {}",
    "channels_last": "channels last {}",
    "flush_denormal": "flush {}",
    "pin_memory": "pin {}",
    "precision": "{}",
}
IMPLIED = 2
"""Prefetch factor that workers bring with them: not worth a word."""


def short_text(settings: TrainSettings, a: TrainSettings | None) -> str:
    """What differs from A, in the fewest words that say it; "A" where nothing does."""
    if settings == a:
        return "A"
    different = settings.difference(a if a is not None else TrainSettings())
    words = []
    if different.pop("precision", None) is not None:
        words.append(settings.precision)
    if different.pop("micro_batch_size", None) is not None or "accumulation_steps" in different:
        words.append(f"{settings.micro_batch_size}x{settings.accumulation_steps}")
    different.pop("accumulation_steps", None)
    if settings.num_workers == 0 or (settings.prefetch_factor == IMPLIED and (a is None or a.num_workers == 0)):
        different.pop("prefetch_factor", None)
    for name in different:
        words.append(SHORT_WORDS.get(name, f"{name} {{}}").format(knob_text(settings, name)))
    return " ".join(words)


def knob_text(settings: TrainSettings, name: str) -> str:
    """The value of a knob as the table shows it."""
    if name == BATCH:
        return f"{settings.micro_batch_size} x {settings.accumulation_steps}"
    value = getattr(settings, name)
    return "-" if value is None else {"true": "yes", "false": "no"}.get(value_text(value), value_text(value))


def board_title(state: TuneState) -> tuple[str, str]:
    """How much is done."""
    states = [trial.state for trial in state.trials.values()]
    done, failed = states.count(TrialState.COMPLETE), states.count(TrialState.FAIL)
    parts = [f"{done} done"]
    if failed:
        parts.append(f"{failed} failed")
    if state.waiting:
        parts.append(f"waiting: {', '.join(state.waiting)}")
    return "Leaderboard", " · ".join(parts)


SPEED, RATIO, DATA = 13, 7, 6
PEAK_BAR, PEAK_TEXT = 10, 9


def board_header(state: TuneState, width: int) -> Line:
    """Names of the columns."""
    budget = "peak"
    if state.opened and _peak_width(width) > PEAK_TEXT:
        budget = f"peak of {bytes_text(state.opened.budget.device_bytes)}"
    peak = f"{budget:>{_peak_width(width)}}"
    text = f"{'#':>3} {'samples/s':>{SPEED}} {'vs A':>{RATIO}} {peak} {'data':>{DATA}} settings"
    return ((text, ""),)


def board_rows(state: TuneState, width: int, glyphs: Glyphs) -> list[ListRow]:
    """One row a trial, by rank, then those without one and why."""
    ratios = state.ratios_to_a()
    return [
        ListRow(row.trial.id, _board_row(row, ratios.get(row.trial.id), state, width, glyphs))
        for row in (state.board.rows if state.board else ())
    ]


def _board_row(row: Row, ratio_to_a: float | None, state: TuneState, width: int, glyphs: Glyphs) -> Line:
    settings = short_text(row.trial.settings, state.a)
    why = why_unranked(row)
    notes = "; ".join(filter(None, (why, *row.flags)))
    complete = row.trial.state is TrialState.COMPLETE
    peak = row.memory.device_peak_bytes if row.memory else None
    kind = "" if row.rank is not None else "dim"
    best = "good" if row.rank is not None and row.tied_with_best else kind
    speed = speed_text(row.throughput) if complete else UNKNOWN
    ratio = ratio_text(ratio_to_a) if complete else UNKNOWN
    line: Line = (
        (f"{rank_text(row):>3} ", best),
        (f"{speed:>{SPEED}} ", best),
        (f"{ratio:>{RATIO}} ", kind),
        *_peak(peak, state, width, glyphs, row.feasible is False),
        (f" {data_wait_text(row):>{DATA}} {settings}", kind),
    )
    if notes:
        line += ((f"  {notes}", "warn" if row.rank is not None else "bad" if why and row.trial.failure else "dim"),)
    return line


def _peak_width(width: int) -> int:
    return PEAK_TEXT if width < 90 else PEAK_BAR + 1 + PEAK_TEXT


def _peak(peak: int | None, state: TuneState, width: int, glyphs: Glyphs, over: bool) -> Line:
    text = (f"{bytes_text(peak):>{PEAK_TEXT}}", "bad" if over else "")
    if _peak_width(width) == PEAK_TEXT:
        return (text,)
    budget = state.opened.budget.device_bytes if state.opened else None
    share = peak / budget if peak is not None and budget else None
    return ((glyphs.bar(share, PEAK_BAR) + " ", "bad" if over else ""), text)


def running_title(state: TuneState) -> tuple[str, str]:
    """What runs, and how long it will."""
    if state.task is None:
        return "Idle", ""
    place = ""
    if state.started is not None:
        total = state.started.total
        place = f" · trial {state.started.number} of {total}" if total else f" · trial {state.started.number}"
    return f"Running: {state.task}{place}", remaining_text(state.remaining_s)


RUNNING_LINES = 4
"""That the panel has at least."""


def running_lines(state: TuneState, width: int, glyphs: Glyphs, height: int = RUNNING_LINES) -> list[Line]:
    """The running trial, the comparison of A and B if there is one, and the last thing that was said in the rest."""
    said = state.messages[-1] if state.messages else None
    comparison = [] if state.comparison is None else [_comparison_line(state, width, glyphs)]
    room = max(1, height - 1 - len(comparison))
    return [
        _trial_line(state, glyphs),
        *comparison,
        *(wrapped(said.text, width, "bad" if said.is_error else "dim", most=room) if said else []),
    ]


def _trial_line(state: TuneState, glyphs: Glyphs) -> Line:
    started, progress = state.started, state.progress
    if started is None:
        words = "reading the workload" if state.task == "open" else "r runs B, a compares A and B, u searches"
        if state.opened is None and state.task is None:
            words = "w chooses a workload"
        return ((words, "dim"),)
    arm = f" ({started.arm})" if started.arm else ""
    line: Line = (
        (f"{glyphs.cursor} ", "accent"),
        (f"{short_text(started.settings, state.a)}{arm}: ", ""),
    )
    if progress is None:
        return (*line, ("starting", "dim"))
    blocks = f", block {progress.blocks} of {progress.planned_blocks}" if progress.planned_blocks else ""
    speed = "" if progress.samples_per_s is None else f", {three_digits(progress.samples_per_s)} samples/s"
    detail = f" ({progress.detail})" if progress.detail else ""
    return (*line, (f"{PHASES.get(progress.phase, progress.phase)}{detail}{blocks}{speed}", "strong"))


PHASES = {
    "start": "starting",
    "import": "importing the workload",
    "build": "building model and data",
    "warm_up": "warming up",
    "largest_batch": "trying the longest batch",
    "evaluation": "trying an evaluation step",
    "measure": "measuring",
    "ready": "waiting for its turn",
    "breakdown": "taking the step apart",
    "finish": "finishing",
    "noise": "measuring the loss's noise",
    "script": "starting the script",
    "detect": "looking at the script's first steps",
}
"""Words for the phases of a trial (`domain.protocol.Phase`)."""


def _comparison_line(state: TuneState, width: int, glyphs: Glyphs) -> Line:
    found = state.comparison
    if found is None:
        return (("", ""),)
    text = comparison_text(found)
    if found.ratio is None or found.low is None or found.high is None:
        return ((text, ""),)
    room = min(30, width - len(text) - 1)
    # Ratios are drawn by their logarithms, with 1.00x in the middle: twice and half are equally far.
    low, middle, high = (math.log(max(ratio, 1e-6)) for ratio in (found.low, found.ratio, found.high))
    reach = max(abs(low), abs(high), LEAST_REACH) * 1.1
    drawn = glyphs.span(low, middle, high, room, (-reach, reach)) if room >= 12 else ""
    kind = {"faster": "good", "slower": "bad"}.get(str(found.verdict), "") if found.over else ""
    return ((drawn + " " if drawn else "", "accent"), (text, kind))


LEAST_REACH = 0.05
"""Logarithm of the ratio at the ends of the drawn interval, at least: about 5 % either way."""


def trial_facts(row: Row, state: TuneState) -> list[str]:
    """What is known of one trial, one fact a line."""
    trial, step = row.trial, row.step_time
    facts = [f"trial {trial.id}: {trial.settings.text(TrainSettings())}"]
    if row.throughput is not None:
        low, high = three_digits(row.throughput.low), three_digits(row.throughput.high)
        launches = f"{row.throughput.launches} {'launch' if row.throughput.launches == 1 else 'launches'}"
        facts.append(f"{speed_text(row.throughput)} samples/s ({low} to {high}), {launches}")
    if step is not None:
        facts.append(
            f"optimizer step: median {seconds_text(step.median_s)}, 95th percentile {seconds_text(step.p95_s)}"
        )
    ratio = state.ratios_to_a().get(trial.id)
    if ratio is not None:
        facts.append(f"{ratio_text(ratio)} of A's throughput")
    return facts
