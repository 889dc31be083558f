"""What was measured, in lines of words: the comments that every exported file begins with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gputune_tui import __version__
from gputune_tui.export.report import ExportReport
from gputune_tui.units import bytes_text, ratio_text, three_digits


def evidence_lines(report: ExportReport) -> Iterator[str]:
    """The evidence for the chosen settings, a sentence a line."""
    yield f"gputune-tui {__version__}: settings for {report.workload.name} on {report.environment.device}"
    speed, memory = report.throughput, report.memory
    if speed is not None:
        warmup = f", warm-up {report.warmup_steps} steps" if report.warmup_steps is not None else ""
        interval = f"{speed.confidence * 100:g} % interval {three_digits(speed.low)} to {three_digits(speed.high)}"
        yield (
            f"{three_digits(speed.value)} samples/s ({interval}); launches {speed.launches}, blocks {speed.blocks}, "
            f"steps {speed.steps}{warmup}"
        )
    if report.baseline is not None and report.baseline.ratio is not None:
        yield f"{ratio_text(report.baseline.ratio)} the baseline; guard: {report.guard}"
    else:
        yield f"guard: {report.guard}"
    peak = memory.device_peak_bytes if memory else None
    if peak is not None:
        yield (
            f"peak {bytes_text(peak)} of {bytes_text(report.budget.device_bytes)}, seen in these steps: a batch longer "
            "than theirs may need more"
        )
    for flag in report.flags:
        yield f"flag: {flag}"


def where_lines(report: ExportReport) -> Iterator[str]:
    """Where that holds: the machine and its software, as far as it is known."""
    found = report.environment
    named = (("driver", found.driver), ("CUDA", found.cuda), ("torch", found.torch), ("Python", found.python))
    software = [f"{name} {version}" for name, version in named if version is not None]
    yield f"measured on {', '.join([found.device_name or found.device, *software])}"


def comments(lines: Iterable[str]) -> str:
    """The lines as comments; nothing in them can end one."""
    return "".join(f"# {one_line(line)}\n" for line in lines)


def one_line(text: str) -> str:
    """The text without anything that could end a line."""
    return "".join(c if c.isprintable() else " " for c in text)
