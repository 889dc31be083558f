"""An exception that ended a trial -> the reason in the user's words. Types first, torch's own texts second."""

from __future__ import annotations

import errno
import pickle
import re
import resource
import signal
import traceback

import torch

from gputune_tui.domain.protocol import Error
from gputune_tui.domain.trial import FailureReason
from gputune_tui.trainer.faults import (
    DeviceUnavailable,
    NoData,
    NonFinite,
    OverBudget,
    SettingsNotApplicable,
    bytes_words,
)
from gputune_tui.trainer.memory import Cap
from gputune_tui.trainer.workload import WorkloadFault, WorkloadRefused, describe_exception

_FAULTS: tuple[tuple[type[Exception], FailureReason], ...] = (
    (OverBudget, FailureReason.OVER_BUDGET),
    (SettingsNotApplicable, FailureReason.INVALID),
    (NoData, FailureReason.NO_DATA),
    (NonFinite, FailureReason.NON_FINITE),
    (DeviceUnavailable, FailureReason.INVALID),
)
_HOST_ALLOCATION = (
    "DefaultCPUAllocator",
    "can't allocate memory",
    "alloc_cpu.cpp",
    "std::bad_alloc",
    "Cannot allocate memory (12)",
)
_MEMORY_IN_WORKER = re.compile(r"Caught (\w*MemoryError|OSError) in DataLoader worker")
_NO_MEMORY = f"[Errno {errno.ENOMEM}]"
_DEVICE_ALLOCATION = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_SHARED_MEMORY = ("unable to allocate shared memory", "unable to open shared memory", "insufficient shared memory")
_SHM_FILE_GONE = "No such file or directory"
_SHM_GONE_WORDS = (
    "a shared memory file of the loader workers was removed from /dev/shm while it was in use; on a login node this is "
    "what a logout does (RemoveIPC=yes in logind.conf)"
)
_SHM_WORDS = (
    "shared memory (/dev/shm) is too small for the loader workers; fewer workers or a smaller prefetch, "
    "or a larger --shm-size for the container"
)
_OPEN_FILES = ("Too many open files", "received 0 items of ancdata")
_NO_MORE_THREADS = "can't start new thread"
_UNSAFE_UNDER_AUTOCAST = "unsafe to autocast"
_LOADERS_TIMEOUT = "DataLoader timed out after"
_LOADER_CHILD_CUDA = "Cannot re-initialize CUDA in forked subprocess"
_HALF_PARAMETERS = "Attempting to unscale FP16 gradients"
_GRAD_SCALER = "torch/amp/grad_scaler.py"
_DISK_FULL = tuple(f"[Errno {number}]" for number in (errno.ENOSPC, errno.EDQUOT))
_FROM_WORKER = re.compile(r"Caught (\w+) in DataLoader worker")
_EXIT_CODE = re.compile(r"exited unexpectedly with exit code (\d+)")
_NOT_PICKLABLE = (
    "not possible with loader workers that are not forked: {}; define the dataset, collate_fn and worker_init_fn at "
    "the top of a module (no lambda, no local function), or use num_workers=0"
)
_COLLATE_HINT = "; the samples of a batch differ, so torch cannot stack them: give the workload a collate_fn"
_DEFAULT_COLLATE = "torch/utils/data/_utils/collate.py"
_TORCHS_TYPES = ("RuntimeError", "OSError", "AcceleratorError")


def classify(error: BaseException, cap: Cap | None, budget_bytes: int | None, peak_bytes: int | None) -> Error:
    """The typed reason of an exception.

    Args:
        error: what ended the trial.
        cap: what refused memory beyond the budget when it was raised.
        budget_bytes: the cap's budget, for the message.
        peak_bytes: the device peak so far, a lower bound of what the setting needs.
    """
    for cls, reason in _FAULTS:
        if isinstance(error, cls):
            return Error(reason, str(error), in_workload=isinstance(error, NoData))
    if isinstance(error, WorkloadRefused):
        return Error(FailureReason.INVALID, str(error), in_workload=True)
    if isinstance(error, WorkloadFault):
        return Error(FailureReason.CRASH, str(error), in_workload=True)
    if is_allocation_failure(error):
        return _out_of_memory(error, cap, budget_bytes, peak_bytes)
    if _scaler_met_half_gradients(error):
        return Error(FailureReason.INVALID, "fp16 AMP is not applicable: the parameters are fp16 already")
    text = _own_text(error)
    if text is not None:
        found = _worker_died(error, text) if text.startswith("DataLoader worker") else _from_torchs_text(text)
        if found is not None:
            return found
    if isinstance(error, OSError) and (found := _from_system(error)) is not None:
        return found
    if _was_not_picklable(error):
        return Error(FailureReason.INVALID, _NOT_PICKLABLE.format(describe_exception(error)))
    hint = _COLLATE_HINT if _was_in_default_collate(error) else ""
    if type(error).__module__ == "bdb":
        hint = "; a trial has no input for a debugger: take breakpoint() and pdb.set_trace() out"
    return Error(FailureReason.CRASH, describe_exception(error) + hint, in_workload=True)


def _from_system(error: OSError) -> Error | None:
    """What the system refused to the user's code: room on a disk, open files, processes."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        if str(error.filename).startswith("/dev/shm/"):
            return Error(FailureReason.SHM, f"shared memory (/dev/shm) is full{where}")
        return Error(FailureReason.DISK_FULL, f"no space left on the disk the workload writes to{where}")
    if error.errno == errno.EFBIG:
        return Error(FailureReason.DISK_FULL, f"a file may not grow any further{where}; see ulimit -f")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return Error(FailureReason.FILE_LIMIT, _file_limit_words())
    if isinstance(error, BlockingIOError) and _was_starting_a_process(error):
        return Error(FailureReason.CRASH, _process_limit_words())
    return None


def is_allocation_failure(error: BaseException) -> bool:
    """True for out-of-memory by type, or by torch's own text on torch's own error types."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    if type(error) in (RuntimeError, OSError) and (sent := _MEMORY_IN_WORKER.match(str(error))):
        # numpy's own MemoryError cannot be rebuilt from a text, so its name is all that arrives.
        return sent[1] != "OSError" or _NO_MEMORY in str(error)
    text = _own_text(error)
    return text is not None and any(part in text for part in (*_HOST_ALLOCATION, *_DEVICE_ALLOCATION))


def _own_text(error: BaseException) -> str | None:
    """The text of an error of exactly the types that torch raises; what a user's ValueError says is theirs.

    An exception that torch cannot rebuild after a loader worker sent it comes as a RuntimeError: its text names the
    type that it had.
    """
    accelerator_error = getattr(torch, "AcceleratorError", RuntimeError)
    if type(error) not in (RuntimeError, OSError, accelerator_error):
        return None
    wrapped = _FROM_WORKER.match(str(error))
    return None if wrapped and wrapped[1] not in _TORCHS_TYPES else str(error)


def _was_not_picklable(error: BaseException) -> bool:
    """True where a worker could not be started since what it needs cannot be pickled."""
    if not isinstance(error, AttributeError | TypeError | pickle.PicklingError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename.endswith("multiprocessing/reduction.py") for frame in frames)


def _was_in_default_collate(error: BaseException) -> bool:
    """True where torch's own collate_fn was the last to run, here or in a loader worker."""
    if _FROM_WORKER.match(str(error)):
        files = re.findall(r'^ *File "(.+)", line \d+', str(error), re.MULTILINE)
    else:
        files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return bool(files) and files[-1].endswith(_DEFAULT_COLLATE)


def _scaler_met_half_gradients(error: BaseException) -> bool:
    """True for the ValueError of torch's own gradient scaler."""
    if _HALF_PARAMETERS not in str(error):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.endswith(_GRAD_SCALER)


def _out_of_memory(error: BaseException, cap: Cap | None, budget: int | None, peak: int | None) -> Error:
    seen = f"; the peak until then was {bytes_words(peak)}" if peak else ""
    on_device = isinstance(error, torch.OutOfMemoryError) or any(part in str(error) for part in _DEVICE_ALLOCATION)
    # A cap holds one kind of memory of the main process: what a worker or the other kind lacks, the machine refused.
    is_held = cap is (Cap.ALLOCATOR if on_device else Cap.DATA_LIMIT) and _FROM_WORKER.match(str(error)) is None
    if is_held and budget is not None:
        return Error(FailureReason.OVER_BUDGET, f"it needs more than the budget of {bytes_words(budget)}{seen}")
    if on_device:
        return Error(FailureReason.DEVICE_OOM, f"the device ran out of memory{seen}")
    return Error(FailureReason.HOST_OOM, f"the host could not give more memory{seen}")


def _from_torchs_text(text: str) -> Error | None:
    if any(part in text for part in _SHARED_MEMORY):
        return Error(FailureReason.SHM, _SHM_GONE_WORDS if _SHM_FILE_GONE in text else _SHM_WORDS)
    if _NO_MORE_THREADS in text:
        return Error(FailureReason.CRASH, _process_limit_words())
    if _UNSAFE_UNDER_AUTOCAST in text:
        return Error(
            FailureReason.INVALID,
            "this loss is not possible under autocast (bf16, fp16), says torch; precision=fp32 works, or a loss that "
            "takes logits",
        )
    if text.startswith(_LOADERS_TIMEOUT):
        return Error(FailureReason.STALLED, f"stalled waiting for data: {text.splitlines()[0]}, the loader's own limit")
    if any(part in text for part in _OPEN_FILES):
        return Error(FailureReason.FILE_LIMIT, _file_limit_words())
    if _LOADER_CHILD_CUDA in text:
        return Error(
            FailureReason.INVALID, "not possible with loader workers: the dataset uses CUDA; num_workers=0 works"
        )
    if _FROM_WORKER.match(text) and any(part in text for part in _DISK_FULL):
        return Error(FailureReason.DISK_FULL, "no space left on the disk a loader worker writes to")
    return None


def _worker_died(error: BaseException, text: str) -> Error:
    """A loader worker ended without an exception: by a signal, or by itself."""
    code = _workers_exit_code(error)
    if code == -signal.SIGBUS or "killed by signal: Bus error" in text:
        return Error(FailureReason.SHM, _SHM_WORDS)
    if code == -signal.SIGKILL or "killed by signal: Killed" in text:
        return Error(
            FailureReason.KILLED, "a loader worker was killed from outside (SIGKILL); is the host out of memory?"
        )
    if code is None:
        return Error(FailureReason.CRASH, f"a loader worker died: {text.splitlines()[0][:200]}")
    if code == 0:
        words = "a loader worker ended by itself (exit code 0), as after sys.exit or KeyboardInterrupt in the dataset"
        return Error(FailureReason.CRASH, words, in_workload=True)
    how = f"exit code {code}" if code >= 0 else signal.strsignal(-code) or f"signal {-code}"
    return Error(FailureReason.CRASH, f"a loader worker died ({how}); the log may tell more")


def _workers_exit_code(error: BaseException) -> int | None:
    """How the worker ended that torch's loader found dead; its text does not always tell."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for worker in frame.f_locals.get("failed_workers") or ():
            code = getattr(worker, "exitcode", None)
            if isinstance(code, int):
                return code
    told = _EXIT_CODE.search(str(error))
    return int(told[1]) if told else None


def _was_starting_a_process(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.endswith(("multiprocessing/popen_fork.py", "subprocess.py"))


def _process_limit_words() -> str:
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limit = "unlimited" if soft == resource.RLIM_INFINITY else soft
    return (
        f"no further process or thread could be started; use fewer workers (ulimit -u is {limit}, the container's own "
        "limit may be lower)"
    )


def _file_limit_words() -> str:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"too many open files (the limit is {soft}); raise it with ulimit -n, or use fewer workers"
