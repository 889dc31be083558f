"""Did a setting compute the same training step as the baseline: its first losses and gradient norms say."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import GuardRecord

LOSS_TOLERANCE = {"fp32": 0.02, "tf32": 0.03, "bf16": 0.05, "fp16": 0.05}
"""Relative deviation of a loss by precision. Deliberately loose: bf16 keeps 8 bits, dropout draws differently for
another micro-batch, and a step that is wrong (a lost loss scale, a window divided twice) is off by far more."""
GRADIENT_FACTOR = 5
"""The norm of a gradient may deviate this many times as much as the loss: it is a sum of squares of small numbers."""
NOISE_FACTOR = 7
"""Deviations of the difference of two random losses that are let pass. Both deviations come from four losses: with six
degrees of freedom Student's t passes 7 once in 2400 comparisons, under heavier tails still seldom."""
GROSS_TOLERANCE = 0.5
"""Where the data could not be drawn again, their noise is unknown: only a step of another scale is found."""
_FLOOR_FRACTION = 0.01
"""A loss near zero is held to this share of the largest baseline loss: relative to itself it is noise."""


def compare_guard(
    record: GuardRecord,
    baseline: GuardRecord | None,
    settings: TrainSettings,
    baseline_settings: TrainSettings | None,
    batchnorm: bool,
) -> str | None:
    """The reason in words to disqualify a setting, or None.

    Without a baseline record only what the record says of itself counts. With BatchNorm another micro-batch is
    another training step by nature, which the row's flag says; it is not held against the setting.
    """
    own = _own_fault(record)
    if own is not None or baseline is None or baseline_settings is None:
        return own
    if baseline.non_finite_steps:
        return None  # the baseline is disqualified itself and no measure for others
    if batchnorm and settings.micro_batch_size != baseline_settings.micro_batch_size:
        return None
    tolerance = max(LOSS_TOLERANCE[settings.precision], LOSS_TOLERANCE[baseline_settings.precision])
    tolerance = _with_noise(tolerance, record.loss_noise_fraction, baseline.loss_noise_fraction)
    # A skipped step leaves the parameters as they were: from there on the two are at different steps.
    comparable = None if record.skipped_steps + baseline.skipped_steps == 0 else 1
    reason = _deviation("loss", record.losses[:comparable], baseline.losses, tolerance)
    if reason is None and comparable is None:
        norms = (record.gradient_norms, baseline.gradient_norms)
        reason = _deviation("gradient norm", *norms, tolerance * GRADIENT_FACTOR)
    return reason


def _with_noise(tolerance: float, noise_fraction: float | None, baseline_noise_fraction: float | None) -> float:
    """The tolerance of a step that is random itself: dropout, augmentation, another order of the data."""
    if noise_fraction is None or baseline_noise_fraction is None:
        return max(tolerance, GROSS_TOLERANCE)
    return tolerance + NOISE_FACTOR * math.hypot(noise_fraction, baseline_noise_fraction)


def _own_fault(record: GuardRecord) -> str | None:
    if record.non_finite_steps:
        steps = "1 step" if record.non_finite_steps == 1 else f"{record.non_finite_steps} steps"
        return f"the loss was NaN or infinite in {steps}"
    if record.parameters_changed is False and record.skipped_steps:
        return "the gradient scaler skipped every step, so no parameter moved"
    if record.parameters_changed is False:
        return "no parameter moved: the optimizer step has no effect"
    return None


def _deviation(what: str, values: Sequence[float], expected: Sequence[float], tolerance: float) -> str | None:
    floor = _FLOOR_FRACTION * max(map(abs, expected), default=0.0)
    for number, (value, wanted) in enumerate(zip(values, expected, strict=False), start=1):
        allowed = tolerance * max(abs(wanted), floor)
        # Written so that a NaN on either side deviates.
        if not abs(value - wanted) <= allowed:
            return (
                f"{what} of step {number} is {value:.4g} where the baseline has {wanted:.4g} "
                f"({tolerance:.0%} deviation is allowed)"
            )
    return None
