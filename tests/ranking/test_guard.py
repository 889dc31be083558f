"""The guard lets numerical noise pass and stops a step that is another one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.trial import GuardRecord
from gputune_tui.ranking.guard import compare_guard
from tests.ranking.make import HEALTHY

FP32 = TrainSettings(micro_batch_size=16)
SMALL = TrainSettings(micro_batch_size=4, accumulation_steps=4)


def judged(record: GuardRecord, settings: TrainSettings = SMALL, batchnorm: bool = False) -> str | None:
    return compare_guard(record, HEALTHY, settings, FP32, batchnorm)


def losses(*factors: float) -> GuardRecord:
    scaled = tuple(loss * factor for loss, factor in zip(HEALTHY.losses, factors, strict=True))
    return replace(HEALTHY, losses=scaled)


def test_the_same_step_passes() -> None:
    assert judged(HEALTHY) is None


@pytest.mark.parametrize(("precision", "passes", "fails"), [("fp32", 1.019, 1.021), ("tf32", 1.029, 1.031)])
def test_the_tolerance_is_that_of_the_looser_precision(precision: str, passes: float, fails: float) -> None:
    settings = replace(SMALL, precision=precision)
    assert judged(losses(1, 1, passes), settings) is None
    assert judged(losses(1, 1, 2 - passes), settings) is None
    reason = judged(losses(1, fails, 1), settings)
    assert reason is not None
    assert "loss of step 2" in reason


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_may_deviate_by_five_percent(precision: str) -> None:
    settings = replace(SMALL, precision=precision)
    assert judged(losses(1.049, 1, 1), settings) is None
    assert judged(losses(1.051, 1, 1), settings) is not None
    assert compare_guard(losses(1.049, 1, 1), HEALTHY, SMALL, replace(FP32, precision=precision), False) is None


def test_a_gradient_that_was_divided_twice_is_found() -> None:
    reason = judged(replace(HEALTHY, gradient_norms=(0.25, 0.225, 0.2)))
    assert reason is not None
    assert reason.startswith("gradient norm of step 1 is 0.25 where the baseline has 1 ")
    assert judged(replace(HEALTHY, gradient_norms=(1.09, 0.9, 0.8))) is None


def test_losses_near_zero_are_not_held_to_their_own_size() -> None:
    baseline = GuardRecord((4.0, 1e-7, -1e-7), (1.0,), parameters_changed=True)
    record = replace(baseline, losses=(4.0, 5e-7, 3e-7))
    assert compare_guard(record, baseline, SMALL, FP32, False) is None
    zeros = replace(baseline, losses=(0.0, 0.0, 0.0))
    assert compare_guard(zeros, zeros, SMALL, FP32, False) is None


def test_nan_deviates() -> None:
    assert judged(losses(1, float("nan"), 1)) is not None


def test_faults_of_its_own_need_no_baseline() -> None:
    for record, words in (
        (replace(HEALTHY, non_finite_steps=2), "NaN or infinite in 2 steps"),
        (replace(HEALTHY, parameters_changed=False), "no parameter moved"),
        (replace(HEALTHY, parameters_changed=False, skipped_steps=9), "skipped every step"),
    ):
        reason = compare_guard(record, None, SMALL, None, False)
        assert reason is not None
        assert words in reason
    assert compare_guard(replace(HEALTHY, parameters_changed=None), None, SMALL, None, False) is None


def test_batchnorm_is_compared_at_the_same_micro_batch_alone() -> None:
    different = losses(2, 2, 2)
    assert judged(different, SMALL, batchnorm=True) is None
    assert judged(different, replace(FP32, num_workers=2), batchnorm=True) is not None
    assert judged(replace(HEALTHY, parameters_changed=False), SMALL, batchnorm=True) is not None


def test_skipped_steps_leave_only_the_first_loss_to_compare() -> None:
    settings = replace(SMALL, precision="fp16")
    record = GuardRecord((4.0, 4.0, 3.8), (0.9, 0.8), skipped_steps=1, parameters_changed=True)
    assert judged(record, settings) is None
    assert judged(replace(record, losses=(8.0, 4.0, 3.8)), settings) is not None


def test_a_baseline_that_is_not_finite_is_no_measure() -> None:
    baseline = replace(HEALTHY, losses=(3.6,), non_finite_steps=2)
    assert compare_guard(losses(2, 2, 2), baseline, SMALL, FP32, False) is None


def test_a_random_step_is_held_to_its_own_noise() -> None:
    baseline, record = replace(HEALTHY, loss_noise_fraction=0.03), losses(1.15, 0.9, 1.2)
    random = replace(record, loss_noise_fraction=0.03)
    assert compare_guard(random, baseline, SMALL, FP32, False) is None
    assert compare_guard(record, HEALTHY, SMALL, FP32, False) is not None
    doubled = replace(losses(2, 2, 2), loss_noise_fraction=0.03)
    assert compare_guard(doubled, baseline, SMALL, FP32, False) is not None


@pytest.mark.parametrize("unknown", ["record", "baseline"])
def test_where_the_noise_is_unknown_only_gross_errors_count(unknown: str) -> None:
    baseline = replace(HEALTHY, loss_noise_fraction=None) if unknown == "baseline" else HEALTHY
    noise = None if unknown == "record" else 0.0
    assert compare_guard(replace(losses(1.4, 0.6, 1), loss_noise_fraction=noise), baseline, SMALL, FP32, False) is None
    assert compare_guard(replace(losses(2, 2, 2), loss_noise_fraction=noise), baseline, SMALL, FP32, False) is not None
