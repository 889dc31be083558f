"""What a row says of its memory and of the temperature of its data."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputune_tui.domain.data_reads import DataReads
from gputune_tui.domain.study import MemoryBudget
from gputune_tui.domain.trial import FailureReason, Launch, MemoryPeaks, PhasePeak, TrialState
from gputune_tui.ranking.data_notes import came_from_cache, data_notes, fits_in_memory
from gputune_tui.ranking.feasibility import is_feasible, passed_host_budget
from gputune_tui.ranking.leaderboard import leaderboard
from gputune_tui.ranking.memory_notes import memory_notes, worst_moment
from tests.ranking.make import MIB, complete, failed, launch

GIB = 1 << 30
WARM = DataReads(1000, 0, 100, 200 * GIB, 1_000_000, 64 * GIB, False, ("ext4",))
COLD = replace(WARM, disk_bytes=200_000_000, data_bytes=2 * GIB, dataset_samples=10_000, cold=True)


def with_data(data: DataReads | None, host_peak: int | None = None) -> Launch:
    return replace(launch(5.0, 5.0, host_peak=host_peak), data=data)


def with_phases(*marks: tuple[str, int]) -> Launch:
    peaks = tuple(PhasePeak(name, mark) for name, mark in marks)
    return replace(launch(5.0), memory=MemoryPeaks(device_peak_bytes=max(p for _, p in marks)), phase_peaks=peaks)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, None),
        (WARM, "measured from a warm page cache: the data (200 GiB) does not fit"),
        (replace(WARM, data_bytes=10 * GIB), None),
        (replace(WARM, data_bytes=None), None),
        (replace(WARM, host_memory_bytes=None), None),
        (replace(WARM, disk_bytes=None), None),
        (replace(WARM, disk_bytes=200_000_000), None),
        (replace(WARM, dataset_samples=None), "measured from a warm page cache"),
        (replace(WARM, dataset_samples=None, disk_bytes=5), None),
        (COLD, "measured cold: 195 KiB from disk per sample"),
        (
            replace(COLD, disk_bytes=20_000_000),
            "measured partly cold: 19.5 KiB from disk per sample; most came",
        ),
        (
            replace(COLD, disk_bytes=2_000_000, dataset_samples=400),
            "measured partly cold: 1.95 KiB from disk per sample; a block",
        ),
        (replace(COLD, disk_bytes=None), "measured cold: the page cache was dropped; this kernel does not tell"),
        (replace(COLD, files=0), "--cold dropped nothing: no data file was seen"),
        (replace(COLD, disk_bytes=0), "--cold had no effect: the blocks read nothing from disk (on ext4)"),
        (replace(COLD, disk_bytes=0, file_systems=("tmpfs",)), "--cold had no effect: the data is on tmpfs"),
    ],
)
def test_the_temperature_in_words(data: DataReads | None, words: str | None) -> None:
    notes = data_notes([with_data(data)])
    assert notes == [] if words is None else notes[0].startswith(words)
    assert leaderboard([complete(1, with_data(data))], MemoryBudget(GIB), None).rows[0].flags == tuple(notes)


def test_launches_that_differ_by_some_bytes_say_it_once() -> None:
    launches = [with_data(replace(COLD, disk_bytes=200_000_000 + n * 5_000_000)) for n in range(3)]
    assert len(data_notes(launches)) == 1


def test_what_the_trial_itself_takes_is_no_room_for_data() -> None:
    data = replace(WARM, data_bytes=40 * GIB)
    assert data_notes([with_data(data, host_peak=10 * GIB)]) == []
    assert data_notes([with_data(data, host_peak=30 * GIB)]) != []


COUNT = st.none() | st.integers(0, 1 << 50)


READS = st.builds(DataReads, st.integers(0, 1 << 40), COUNT, st.integers(0, 9), COUNT, COUNT, COUNT, st.booleans())


@given(READS)
def test_unknown_is_never_taken_for_something(data: DataReads) -> None:
    notes = data_notes([with_data(data)])
    assert len(notes) <= 1
    if data.cold:
        assert len(notes) == 1
    if not data.cold and notes:
        assert fits_in_memory(data, None) is False
        assert came_from_cache(data) is True
    if data.disk_bytes is None or data.samples == 0:
        assert came_from_cache(data) is None


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        ([("build", 100), ("warm_up", 200), ("largest_batch", 400)], "the longest batch; until then it was 200"),
        ([("warm_up", 200), ("largest_batch", 400), ("evaluation", 900)], "the evaluation step; until then it was 400"),
        ([("warm_up", 200), ("evaluation", 300), ("measure", 303)], "the evaluation step; until then it was 200"),
        ([("warm_up", 200), ("largest_batch", 202)], None),
        ([("warm_up", 200), ("largest_batch", 400), ("measure", 500)], None),
        ([("build", 100), ("warm_up", 200)], None),
    ],
)
def test_the_moment_of_the_peak(marks: list[tuple[str, int]], words: str | None) -> None:
    said = worst_moment([with_phases(*marks)])
    assert said is None if words is None else said is not None and words in said


def test_the_launch_with_the_largest_peak_speaks() -> None:
    small, large = with_phases(("warm_up", 100), ("largest_batch", 200)), with_phases(("warm_up", 300))
    assert worst_moment([small, large]) is None
    assert worst_moment([launch(5.0), small]) is not None
    assert worst_moment([]) is None


def test_another_hosts_budget_judges_anew_without_a_run() -> None:
    trial = complete(1, launch(5.0, peak=100, host_peak=600 * MIB))
    for limit, fits in ((500 * MIB, False), (600 * MIB, True), (None, True)):
        budget = MemoryBudget(100, limit)
        assert is_feasible(trial, budget) is fits
        assert bool(memory_notes(trial, budget)) is not fits
    row = leaderboard([trial], MemoryBudget(100, 500 * MIB), None).rows[0]
    assert row.rank is None
    assert row.flags == ("host memory 600 MiB is over the host's budget of 500 MiB",)


def test_a_default_that_nobody_asked_for_holds_what_is_known_alone() -> None:
    unknown, known = complete(1, launch(5.0, peak=100)), complete(2, launch(5.0, peak=100, host_peak=9))
    default = MemoryBudget(100, 5, host_is_default=True)
    assert is_feasible(unknown, default) is True
    assert is_feasible(known, default) is False


def test_a_trial_ended_over_the_hosts_budget_says_nothing_of_the_devices() -> None:
    seen = MemoryPeaks(device_peak_bytes=50, host_peak_bytes=700)
    trial = replace(failed(1, FailureReason.OVER_BUDGET, cap=100), partial_memory=seen, host_budget_bytes=600)
    assert trial.state is TrialState.FAIL
    assert passed_host_budget(trial)
    assert is_feasible(trial, MemoryBudget(100, 600)) is False
    assert is_feasible(trial, MemoryBudget(100, 699)) is False
    assert is_feasible(trial, MemoryBudget(100, 1000)) is None
    assert is_feasible(trial, MemoryBudget(100)) is None
    assert is_feasible(trial, MemoryBudget(49)) is False
    assert not passed_host_budget(replace(trial, host_budget_bytes=None))
