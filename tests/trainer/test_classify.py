"""What ended a trial -> its reason in the user's words: types first, torch's own texts on torch's own types second."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._utils import ExceptionWrapper

from gputune_tui.domain.protocol import Error
from gputune_tui.domain.trial import FailureReason
from gputune_tui.trainer.classify import classify, is_allocation_failure
from gputune_tui.trainer.faults import DeviceUnavailable, NoData, NonFinite, OverBudget, SettingsNotApplicable
from gputune_tui.trainer.memory import Cap
from gputune_tui.trainer.workload import WorkloadFault, WorkloadRefused

MIB = 1 << 20
CPU_ALLOCATION = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4294967296 bytes. Error code 12 (Cannot allocate memory)"
)
CUDA_FORK = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' "
    "start method"
)
Reraise = Callable[[str], BaseException]


def told(error: BaseException, cap: Cap | None = None, budget: int | None = None, peak: int | None = None) -> Error:
    found = classify(error, cap, budget, peak)
    assert found.message == " ".join(found.message.split()), "one sentence on one line"
    return found


@pytest.fixture
def in_worker(tmp_path: Path) -> Reraise:
    """Raise with code of a user's file inside a loader worker; gives what torch raises in the main process."""

    def reraise(raising: str, prelude: str = "") -> BaseException:
        path = tmp_path / "users_data.py"
        path.write_text(f"{prelude}\ndef __getitem__(index):\n    {raising}\n")
        names: dict[str, object] = {}
        exec(compile(path.read_text(), str(path), "exec"), names)  # as the user's module would be
        getitem = names["__getitem__"]
        assert callable(getitem)
        try:
            getitem(3)
        except BaseException:
            wrapper = ExceptionWrapper(where="in DataLoader worker process 0")
        try:
            wrapper.reraise()
        except BaseException as error:
            return error
        raise AssertionError("nothing was raised")

    return reraise


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), FailureReason.DEVICE_OOM),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be..."), FailureReason.DEVICE_OOM),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), FailureReason.DEVICE_OOM),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), FailureReason.DEVICE_OOM),
        (RuntimeError(CPU_ALLOCATION), FailureReason.HOST_OOM),
        (MemoryError(), FailureReason.HOST_OOM),
        (MemoryError("Unable to allocate 8.00 GiB for an array"), FailureReason.HOST_OOM),
        (RuntimeError("std::bad_alloc"), FailureReason.HOST_OOM),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), FailureReason.HOST_OOM),
    ],
)
def test_out_of_memory_in_all_its_forms(error: BaseException, reason: FailureReason) -> None:
    assert is_allocation_failure(error)
    free = told(error, peak=300 * MIB)
    assert (free.reason, free.in_workload) == (reason, False)
    assert free.message.endswith("the peak until then was 300.0 MiB")
    on_device = reason is FailureReason.DEVICE_OOM
    capped = told(error, Cap.ALLOCATOR if on_device else Cap.DATA_LIMIT, budget=4 << 30, peak=300 * MIB)
    assert capped.reason is FailureReason.OVER_BUDGET
    assert "more than the budget of 4.00 GiB; the peak until then was 300.0 MiB" in capped.message
    assert "peak" not in told(error).message
    other_kind = told(error, Cap.DATA_LIMIT if on_device else Cap.ALLOCATOR, budget=4 << 30, peak=300 * MIB)
    assert other_kind == free


class UsersOutOfMemory(RuntimeError):
    """A user's own class."""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)"),
        RuntimeError("I ran out of memory of what I wanted to say"),
        ValueError("CUDA error: out of memory"),
        ValueError(CPU_ALLOCATION),
        UsersOutOfMemory(CPU_ALLOCATION),
        KeyError("DefaultCPUAllocator"),
        AssertionError("CUBLAS_STATUS_ALLOC_FAILED"),
        ValueError("Too many open files"),
        ValueError(CUDA_FORK),
        ValueError("Attempting to unscale FP16 gradients."),
        ValueError("unable to allocate shared memory(shm)"),
        ValueError("can't start new thread"),
        ValueError("this loss is unsafe to autocast"),
        BlockingIOError(errno.EAGAIN, "a socket of the user's"),
        OSError(errno.EACCES, "Permission denied"),
    ],
)
@pytest.mark.parametrize("cap", [None, *Cap])
def test_a_users_words_are_the_users(error: BaseException, cap: Cap | None) -> None:
    assert not is_allocation_failure(error)
    found = told(error, cap, budget=4 << 30)
    assert (found.reason, found.in_workload) == (FailureReason.CRASH, True)
    assert type(error).__name__ in found.message


@pytest.mark.parametrize(
    ("error", "reason", "in_workload"),
    [
        (OverBudget("it takes more", 5), FailureReason.OVER_BUDGET, False),
        (SettingsNotApplicable("no such blocks"), FailureReason.INVALID, False),
        (DeviceUnavailable("torch sees no CUDA device"), FailureReason.INVALID, False),
        (NonFinite("the loss is nan at optimizer step 3"), FailureReason.NON_FINITE, False),
        (NoData("the loader gave no batch"), FailureReason.NO_DATA, True),
        (WorkloadRefused("there is no file x.py"), FailureReason.INVALID, True),
        (WorkloadFault("w: loss returned dict"), FailureReason.CRASH, True),
    ],
)
def test_our_own_faults_keep_their_sentence(error: Exception, reason: FailureReason, in_workload: bool) -> None:
    assert told(error, Cap.DATA_LIMIT, budget=1) == Error(reason, str(error), in_workload)


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (RuntimeError("received 0 items of ancdata"), FailureReason.FILE_LIMIT, "ulimit -n"),
        (RuntimeError("Too many open files. Communication with the workers..."), FailureReason.FILE_LIMIT, "ulimit -n"),
        (OSError(errno.EMFILE, "Too many open files"), FailureReason.FILE_LIMIT, "ulimit -n"),
        (OSError(errno.ENFILE, "Too many open files in system"), FailureReason.FILE_LIMIT, "ulimit -n"),
        (PermissionError(errno.EMFILE, "odd"), FailureReason.FILE_LIMIT, "ulimit -n"),
        (OSError(errno.ENOSPC, "No space left on device", "/data/x.bin"), FailureReason.DISK_FULL, "/data/x.bin"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), FailureReason.DISK_FULL, "no space left"),
        (RuntimeError("unable to allocate shared memory(shm) for file </torch_1>"), FailureReason.SHM, "/dev/shm"),
        (RuntimeError("unable to open shared memory object </torch_1> in read-write mode"), FailureReason.SHM, "shm"),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that..."),
            FailureReason.SHM,
            "/dev/shm",
        ),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. "),
            FailureReason.KILLED,
            "a loader worker was killed from outside",
        ),
        (RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly"), FailureReason.CRASH, "exited unexpectedly"),
        (RuntimeError(CUDA_FORK), FailureReason.INVALID, "the dataset uses CUDA; num_workers=0 works"),
        (
            RuntimeError("unable to open shared memory object </torch_1>: No such file or directory (2)"),
            FailureReason.SHM,
            "was removed from /dev/shm",
        ),
        (OSError(errno.ENOSPC, "No space left on device", "/dev/shm/x"), FailureReason.SHM, "/dev/shm/x"),
        (OSError(errno.EFBIG, "File too large"), FailureReason.DISK_FULL, "ulimit -f"),
        (RuntimeError("can't start new thread"), FailureReason.CRASH, "use fewer workers"),
        (RuntimeError("torch.nn.BCELoss are unsafe to autocast.\nMany"), FailureReason.INVALID, "not possible under"),
        (RuntimeError("DataLoader timed out after 5 seconds"), FailureReason.STALLED, "after 5 seconds, the loader's"),
        (
            RuntimeError("DataLoader worker (pid 7) exited unexpectedly with exit code 1. Details are lost"),
            FailureReason.CRASH,
            "a loader worker died (exit code 1)",
        ),
    ],
)
def test_torchs_and_the_systems_own_texts(error: BaseException, reason: FailureReason, words: str) -> None:
    found = told(error)
    assert found.reason is reason
    assert words in found.message
    assert not found.in_workload


def test_a_model_in_half_makes_amp_not_applicable() -> None:
    # torch raises a ValueError from its own grad scaler, which is told apart from a user's by where it comes from.
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale((weight * 1.0).sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients") as caught:
        scaler.unscale_(optimizer)
    found = told(caught.value)
    assert found.reason is FailureReason.INVALID
    assert "the parameters are fp16 already" in found.message


def test_a_dataset_that_uses_cuda_in_a_worker(in_worker: Reraise) -> None:
    found = told(in_worker(f"raise RuntimeError({CUDA_FORK!r})"))
    assert (found.reason, found.in_workload) == (FailureReason.INVALID, False)
    assert found.message == "not possible with loader workers: the dataset uses CUDA; num_workers=0 works"


@pytest.mark.parametrize(
    ("prelude", "raising", "words"),
    [
        ("", "raise ValueError('bad label')", "ValueError: bad label"),
        ("", "raise KeyError('cat')", "KeyError: 'cat'"),
        ("", "[][index]", "IndexError: list index out of range"),
        (
            "class BadLabel(Exception):\n    def __init__(self, *, label):\n        super().__init__(f'label {label}')",
            "raise BadLabel(label=7)",
            "BadLabel: label 7",
        ),
        (
            "class Odd(Exception):\n    def __init__(self, a, b):\n        super().__init__('two', 'parts')",
            "raise Odd(1, 2)",
            "Odd: ('two', 'parts')",
        ),
        ("class Silent(Exception): pass", "raise Silent", "Silent"),
    ],
)
def test_an_exception_in_a_worker_is_the_users_own(
    in_worker: Callable[[str, str], BaseException], prelude: str, raising: str, words: str
) -> None:
    found = told(in_worker(raising, prelude))
    assert (found.reason, found.in_workload) == (FailureReason.CRASH, True)
    line = prelude.count("\n") + 3
    assert found.message.endswith(f"(users_data.py:{line} in __getitem__)"), found.message
    assert words in found.message
    assert "Caught" not in found.message
    assert "worker process" not in found.message


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "Too many open files", CUDA_FORK])
def test_a_users_words_stay_theirs_when_torch_cannot_rebuild_their_exception(
    in_worker: Callable[[str, str], BaseException], text: str
) -> None:
    prelude = "class Mine(Exception):\n    def __init__(self, *, text):\n        super().__init__(text)"
    found = told(in_worker(f"raise Mine(text={text!r})", prelude))
    assert (found.reason, found.in_workload) == (FailureReason.CRASH, True)
    assert "Mine: " in found.message


@pytest.mark.parametrize("cap", [None, *Cap])
def test_memory_that_a_worker_lacks_is_the_hosts_since_no_cap_holds_it(in_worker: Reraise, cap: Cap | None) -> None:
    raised = ("raise MemoryError", f"raise RuntimeError({CPU_ALLOCATION!r})", f"raise OSError({errno.ENOMEM}, 'no')")
    for error in map(in_worker, raised):
        assert told(error, cap, budget=4 << 30).reason is FailureReason.HOST_OOM
    not_rebuilt = RuntimeError("Caught _ArrayMemoryError in DataLoader worker process 0.\nOriginal")
    assert told(not_rebuilt, cap, budget=4 << 30).reason is FailureReason.HOST_OOM


def test_a_workers_system_errors_keep_their_meaning(in_worker: Reraise) -> None:
    files = in_worker("raise OSError(24, 'Too many open files')")
    assert told(files).reason is FailureReason.FILE_LIMIT
    assert told(in_worker("raise OSError(28, 'No space left on device')")).reason is FailureReason.DISK_FULL
    assert told(in_worker("open('/no/such/file')")).reason is FailureReason.CRASH


def test_real_allocations_of_this_torch_are_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_allocation_failure(caught.value)
    with pytest.raises(MemoryError) as refused:
        bytearray(1 << 60)
    assert is_allocation_failure(refused.value)
    with pytest.raises(RuntimeError) as shapes:
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert not is_allocation_failure(shapes.value)


def test_the_place_is_the_deepest_line_of_the_users_files(tmp_path: Path) -> None:
    path = tmp_path / "train_it.py"
    path.write_text("import json\n\ndef load():\n    return json.loads('{')\n")
    names: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)  # as the user's module would be
    load = names["load"]
    assert callable(load)
    with pytest.raises(ValueError, match="Expecting") as caught:
        load()
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 2
    found = told(caught.value)
    assert found.message.startswith("JSONDecodeError: Expecting")
    assert found.message.endswith("(train_it.py:4 in load)")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), SystemExit("usage: train.py [--lr]")])
def test_user_code_that_leaves_is_a_fault_of_the_workload(error: BaseException) -> None:
    found = told(error)
    assert (found.reason, found.in_workload) == (FailureReason.CRASH, True)
    assert type(error).__name__ in found.message


def test_endless_words_are_cut() -> None:
    found = told(RuntimeError("long " * 10_000 + "\n\n" + "x" * 10_000))
    assert len(found.message) < 500
