"""Peaks and caps of a trial's memory: real limits in forked processes, CUDA's counters scripted."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from gputune_tui.domain.trial import FailureReason
from gputune_tui.trainer import memory
from gputune_tui.trainer.classify import classify
from gputune_tui.trainer.faults import OverBudget
from gputune_tui.trainer.memory import Cap, CpuMemory, CudaMemory, HostMemory, lift_data_limit, process_is_capped
from tests.trainer.forked import in_fork

MIB = 1 << 20
GIB = 1 << 30
OVERHEAD = 300 * MIB


def data_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def test_a_tensor_beyond_the_budget_is_refused_and_typed() -> None:
    def trial() -> Any:
        budget = OVERHEAD + 200 * MIB
        watch = CpuMemory(budget, OVERHEAD, threads=1)
        kept = torch.ones(100 * MIB, dtype=torch.uint8)
        try:
            torch.ones(1 * GIB, dtype=torch.uint8)
        except RuntimeError as error:
            found = classify(error, watch.cap, budget, watch.peaks().device_peak_bytes)
            return found.reason.value, found.message, len(kept)
        return "nothing was refused"

    reason, message, kept = in_fork(trial)
    assert reason == FailureReason.OVER_BUDGET.value
    assert "more than the budget of 500.0 MiB; the peak until then was 4" in message
    assert kept == 100 * MIB


def test_pythons_own_memory_is_capped_too() -> None:
    def trial() -> Any:
        watch = CpuMemory(OVERHEAD + 200 * MIB, OVERHEAD, threads=1)
        try:
            bytearray(1 * GIB)
        except MemoryError as error:
            return classify(error, watch.cap, 1, None).reason.value
        return "nothing was refused"

    assert in_fork(trial) == "OVER_BUDGET"


def test_after_the_cap_is_lifted_there_is_room_for_the_report() -> None:
    def trial() -> Any:
        watch = CpuMemory(OVERHEAD + 64 * MIB, OVERHEAD, threads=1)
        capped = process_is_capped(), memory.cap_room_bytes()
        cap = watch.cap is Cap.DATA_LIMIT
        watch.lift_cap()
        tensor = torch.empty(1 * GIB, dtype=torch.uint8)  # never touched
        return *capped, cap, process_is_capped(), watch.cap is None, memory.cap_room_bytes(), len(tensor)

    capped, room, cap_before, still_capped, no_cap_after, room_after, size = in_fork(trial)
    assert cap_before
    assert no_cap_after
    assert capped
    # The room of the budget, one thread's stack and the slack for address space that is never touched.
    assert 64 * MIB <= room <= (64 + 64 + 1024) * MIB
    assert not still_capped
    assert room_after is None
    assert size == 1 * GIB


def test_without_a_budget_nothing_is_capped() -> None:
    def trial() -> Any:
        before = data_limit()
        CpuMemory(None, OVERHEAD, threads=4)
        return data_limit() == before

    assert in_fork(trial)


@pytest.mark.parametrize("budget", [1, MIB, OVERHEAD])
def test_a_budget_below_the_interpreter_itself_is_over_before_it_starts(budget: int) -> None:
    before = data_limit()
    with pytest.raises(OverBudget, match=r"the interpreter with torch alone takes 300.0 MiB, more than") as caught:
        CpuMemory(budget, OVERHEAD, threads=1)
    assert caught.value.needs_bytes == OVERHEAD
    assert data_limit() == before


def test_a_hard_limit_of_the_user_is_kept() -> None:
    def trial() -> Any:
        room = (memory._status_bytes("VmData") or 0) + 512 * MIB
        resource.setrlimit(resource.RLIMIT_DATA, (room, room))
        users = CpuMemory(100 * GIB, OVERHEAD, threads=1)
        kept = resource.getrlimit(resource.RLIMIT_DATA) == (room, room) and users.cap is None
        CpuMemory(OVERHEAD + 64 * MIB, OVERHEAD, threads=1)
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        lift_data_limit()
        return kept, soft < hard == room, data_limit() == room

    assert in_fork(trial) == [True, True, True]


def test_a_budget_beyond_any_machine_is_no_cap() -> None:
    def trial() -> Any:
        CpuMemory(9 * 10**21, OVERHEAD, threads=1)
        return len(torch.empty(GIB, dtype=torch.uint8))

    assert in_fork(trial) == GIB


def test_growth_is_counted_from_before_the_model_and_never_falls() -> None:
    def trial() -> Any:
        watch = CpuMemory(None, OVERHEAD, threads=1)
        start = watch.peaks().device_peak_bytes
        tensor = torch.ones(128 * MIB, dtype=torch.uint8)
        grown = watch.peaks().device_peak_bytes
        del tensor
        return start, grown, watch.peaks().device_peak_bytes

    start, grown, after = in_fork(trial)
    assert OVERHEAD <= start <= OVERHEAD + 32 * MIB
    assert grown - start == pytest.approx(128 * MIB, abs=16 * MIB)
    # The kernel adds up its counters per CPU, so that a reading may be some pages off.
    assert grown <= after <= grown + MIB


def test_what_was_taken_and_returned_between_two_readings_is_seen() -> None:
    def trial() -> Any:
        watch = CpuMemory(None, OVERHEAD, threads=1)
        tensor = torch.ones(128 * MIB, dtype=torch.uint8)
        del tensor
        return watch.peaks().device_peak_bytes

    assert in_fork(trial) >= OVERHEAD + 112 * MIB


def test_what_the_import_took_is_not_the_models() -> None:
    def trial() -> Any:
        spike = torch.ones(256 * MIB, dtype=torch.uint8)
        del spike
        watch = CpuMemory(None, OVERHEAD, threads=1)
        return watch.peaks().device_peak_bytes

    assert in_fork(trial) <= OVERHEAD + 32 * MIB


def test_the_first_launch_measures_its_overhead() -> None:
    def trial() -> Any:
        watch = CpuMemory(None, None, threads=1)
        return watch.fixed_overhead_bytes, memory._status_bytes("VmRSS")

    overhead, resident = in_fork(trial)
    assert overhead == pytest.approx(resident, abs=16 * MIB)
    assert overhead > 50 * MIB


def test_the_own_host_peak_never_falls() -> None:
    def trial() -> Any:
        watch = HostMemory()
        before = watch.peak_bytes()
        data = b"x" * (100 * MIB)
        del data
        after = watch.peak_bytes()
        Path("/proc/self/clear_refs").write_text("5")
        return before, after, watch.peak_bytes()

    before, after, later = in_fork(trial)
    assert after - before >= 96 * MIB
    assert later >= after


def test_proc_is_read_in_bytes_and_unknown_is_none() -> None:
    resident = memory._status_bytes("VmRSS")
    assert resident is not None
    assert 20 * MIB < resident < 64 * GIB
    assert (memory._status_bytes("VmHWM") or 0) >= resident - 4 * MIB
    assert memory._status_bytes("VmNothing") is None
    assert memory._status_bytes("Name") is None
    assert memory._status_bytes("VmRSS", 2**30) is None


class FakeCuda:
    """The counters that the allocator and the driver would tell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int = 130 * GIB, total: int = 140 * GIB) -> None:
        self.fraction: float | None = None
        self.stats: dict[str, int] = {}
        self.reset = 0
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, total))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: 2 * MIB)
        monkeypatch.setattr(torch.cuda, "memory_stats", lambda _device: self.stats)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self._reset)
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", self._limit)

    def _reset(self, _device: torch.device) -> None:
        self.reset += 1

    def _limit(self, fraction: float, _device: torch.device) -> None:
        self.fraction = fraction


CUDA = torch.device("cuda:0")


@pytest.mark.parametrize(
    ("free_before", "context"),
    [
        (130 * GIB + 502 * MIB, 500 * MIB),
        (None, memory.TYPICAL_CONTEXT_BYTES),
        (140 * GIB, memory.TYPICAL_CONTEXT_BYTES),  # a neighbour came meanwhile
        (120 * GIB, memory.TYPICAL_CONTEXT_BYTES),  # a neighbour left meanwhile
        (130 * GIB + 2 * MIB, memory.TYPICAL_CONTEXT_BYTES),  # the driver tells nothing
    ],
)
def test_the_context_is_what_became_less_free_where_that_can_be(
    monkeypatch: pytest.MonkeyPatch, free_before: int | None, context: int
) -> None:
    cuda = FakeCuda(monkeypatch)
    watch = CudaMemory(CUDA, None, free_before)
    assert watch.fixed_overhead_bytes == context
    assert cuda.fraction is None
    assert cuda.reset == 1


def test_the_budget_holds_the_allocator_to_what_the_context_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    CudaMemory(CUDA, 70 * GIB + 500 * MIB, 130 * GIB + 502 * MIB)
    assert cuda.fraction == pytest.approx(0.5)


def test_a_budget_above_the_card_is_the_whole_card(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    CudaMemory(CUDA, 500 * GIB, None)
    assert cuda.fraction == 1.0


def test_a_budget_below_the_context_is_over_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    with pytest.raises(OverBudget, match="the CUDA context alone takes 500") as caught:
        CudaMemory(CUDA, 100 * MIB, 130 * GIB + 502 * MIB)
    assert caught.value.needs_bytes == 500 * MIB
    assert cuda.fraction is None


def test_reserved_memory_and_the_context_are_what_the_device_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    watch = CudaMemory(CUDA, None, 130 * GIB + 502 * MIB)
    cuda.stats = {
        "allocated_bytes.all.peak": 2 * GIB,
        "reserved_bytes.all.peak": 16 * GIB,
        "reserved_bytes.all.current": 3 * GIB,
        "num_alloc_retries": 4,
    }
    peaks = watch.peaks()
    assert peaks.peak_allocated_bytes == 2 * GIB
    assert peaks.peak_reserved_bytes == 16 * GIB
    assert peaks.device_peak_bytes == 16 * GIB + 500 * MIB
    assert peaks.alloc_retries == 4
    assert peaks.host_peak_bytes
