"""Faults of the user's code: each ends its own trial alone, in the user's words, with file and line."""

from __future__ import annotations

import os

import pytest

from gputune_tui.domain.trial import FailureReason

from .conftest import RunCase
from .running import HEAD

pytestmark = pytest.mark.slow

LOSS = """
class Workload(Base):
    def loss(self, model, batch):
        {body}
"""
DATA = """
class Data(Numbers):
    def __getitem__(self, i):
        {body}
class Workload(Base):
    def build_dataset(self): return Data()
"""
LINE = HEAD.count("\n") + 4
"""Where {body} stands in the file."""


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        ("sys.exit(0)", FailureReason.CRASH, ("SystemExit", f"wl.py:{LINE} in loss")),
        ("raise KeyboardInterrupt", FailureReason.CRASH, ("KeyboardInterrupt", f"wl.py:{LINE} in loss")),
        ("os._exit(0)", FailureReason.ENDED_EARLY, ("ended by itself",)),
        ("os.abort()", FailureReason.CRASH, ("SIGABRT",)),
        ("os.kill(0, 15); time.sleep(60)", FailureReason.KILLED, ("SIGTERM", f"wl.py:{LINE} loss")),
        ("raise ValueError('CUDA out of memory')", FailureReason.CRASH, ("ValueError: CUDA",)),
        ("breakpoint()", FailureReason.CRASH, ("BdbQuit", "a trial has no input")),
        ("next(iter([]))", FailureReason.CRASH, ("StopIteration", f"wl.py:{LINE} in loss")),
        ("input('name? ')", FailureReason.CRASH, ("EOFError", f"wl.py:{LINE} in loss")),
    ],
)
def test_a_fault_in_the_loss(run_case: RunCase, body: str, reason: FailureReason, words: tuple[str, ...]) -> None:
    result = run_case(LOSS.format(body=body))
    assert result.reason is reason, result.message
    for word in words:
        assert word in result.message
    assert result.in_workload is (reason is not FailureReason.KILLED)
    assert "\n" not in result.message


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        ("return torch.ones(1 + i % 8)", FailureReason.CRASH, ("stack expects", "collate_fn")),
        ("os.kill(os.getpid(), 9)", FailureReason.KILLED, ("a loader worker was killed", "SIGKILL")),
        ("os.kill(os.getpid(), 11)", FailureReason.CRASH, ("a loader worker died", "Segmentation fault")),
        ("sys.exit(3)", FailureReason.CRASH, ("a loader worker died", "exit code 3")),
        ("raise RuntimeError('Cannot re-initialize CUDA in forked subprocess')", FailureReason.INVALID, ("uses CUDA",)),
        ("raise KeyboardInterrupt", FailureReason.CRASH, ("a loader worker ended by itself", "exit code 0")),
        ("raise GeneratorExit", FailureReason.CRASH, ("a loader worker died", "exit code 1")),
        ("raise MemoryError", FailureReason.HOST_OOM, ("memory",)),
        ("import numpy; numpy.ones(1 << 50)", FailureReason.HOST_OOM, ("memory",)),
        ("import mmap; mmap.mmap(-1, 1 << 60)", FailureReason.HOST_OOM, ("memory",)),
    ],
)
def test_a_fault_in_a_loader_worker(
    run_case: RunCase, body: str, reason: FailureReason, words: tuple[str, ...]
) -> None:
    result = run_case(DATA.format(body=body), budget_bytes=None, num_workers=2)
    assert result.reason is reason, result.message
    for word in words:
        assert word in result.message


def test_an_exception_with_an_odd_constructor_in_a_worker(run_case: RunCase) -> None:
    odd = """
class Odd(Exception):
    def __init__(self, *, code): super().__init__(f"odd {code}")
"""
    result = run_case(odd + DATA.format(body="raise Odd(code=7)"), num_workers=2)
    assert result.reason is FailureReason.CRASH
    assert f"Odd: odd 7 (wl.py:{LINE + 3} in __getitem__)" in result.message


def test_names_and_texts_that_no_terminal_should_see(run_case: RunCase) -> None:
    source = LOSS.format(body=r"raise ValueError('[bold]\udcff\x1b[2J\x00 é中\nsecond')")
    result = run_case(source, file=os.fsdecode("w[bold] é".encode() + b"\xff.py"))
    assert result.reason is FailureReason.CRASH
    assert "[bold]" in result.message
    assert "w[bold] é" in result.message
    assert "\n" not in result.message


def test_a_lambda_that_spawned_workers_cannot_get(run_case: RunCase) -> None:
    result = run_case(
        """
        class Workload(Base):
            def build_loader(self, batch_size, num_workers):
                return DataLoader(Numbers(), batch_size, num_workers=num_workers, collate_fn=lambda b: torch.stack(b),
                                  multiprocessing_context="spawn")
        """,
        num_workers=1,
    )
    assert result.reason is FailureReason.INVALID
    assert "collate_fn" in result.message
    assert not result.in_workload, "other settings can still work"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("body", ["if i == 7: raise StopIteration", "if i == 7: next(iter([]))"])
def test_a_stop_iteration_in_a_dataset_is_no_end_of_an_epoch(run_case: RunCase, body: str, workers: int) -> None:
    result = run_case(DATA.format(body=f"{body}\n        return super().__getitem__(i)"), num_workers=workers)
    assert result.reason is FailureReason.CRASH
    assert f"StopIteration (wl.py:{LINE} in __getitem__)" in result.message
    assert "the end of the epoch" in result.message
    assert result.in_workload


def test_a_sample_that_is_none(run_case: RunCase) -> None:
    result = run_case(DATA.format(body="return None if i == 7 else super().__getitem__(i)"))
    assert result.reason is FailureReason.CRASH
    assert "NoneType" in result.message
    assert "collate_fn" in result.message
    assert result.in_workload, "every setting fails alike"


def test_a_loss_that_refuses_autocast_leaves_the_other_precisions(run_case: RunCase) -> None:
    """On CUDA torch refuses this loss itself; its CPU accepts it, so the text stands for it."""
    refusal = "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\\nMany models"
    body = f"if torch.is_autocast_enabled('cpu'): raise RuntimeError('{refusal}')"
    source = LOSS.format(body=body + "\n        return super().loss(model, batch)")
    refused = run_case(source, precision="bf16")
    assert refused.reason is FailureReason.INVALID
    assert "not possible under autocast" in refused.message
    assert run_case(source, precision="fp32").is_complete
