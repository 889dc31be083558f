"""A trial forked from the warm host is what a fresh process would be: state, memory, and what it may start itself."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gputune_tui.domain.job import Job, MeasurePlan
from gputune_tui.domain.settings import TrainSettings
from gputune_tui.domain.study import WorkloadRef
from gputune_tui.domain.trial import FailureReason, TrialState
from gputune_tui.trial.launcher import Launcher, LocalLauncher
from gputune_tui.trial.supervisor import Limits, TrialRun
from gputune_tui.trial.warm_launcher import WarmLauncher

from .test_supervisor import run_out

pytestmark = pytest.mark.slow

PLAN = MeasurePlan(blocks=2, min_blocks=2, block_s=0.05, max_warmup_steps=6, extra_blocks=0)
OVERHEAD_AGREES_BYTES = 16 << 20
PEAK_AGREES_BYTES = 24 << 20
"""Far below the 300 MiB that a forked child would lack if it did not map what its host had. Launches of one kind differ
by up to 16 MiB here, since glibc does not always give freed memory back; `tests.benchmarks.start` asks for 8."""
HEAD = """
import atexit, gc, json, multiprocessing, os, random, resource, signal, sys, threading, torch
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return torch.full((4,), i / 64)

class Workload:
    global_batch_size = 8
    def build_model(self): return nn.Linear(4, 1)
    def build_dataset(self): return Numbers()
    def loss(self, model, batch): return model(batch).pow(2).mean()
"""


def run_workload(
    launcher: Launcher, folder: Path, source: str, threads: int = 1, budget_bytes: int | None = 4 << 30, **knobs: Any
) -> TrialRun:
    file = folder / "wl.py"
    file.write_text(HEAD + textwrap.dedent(source))
    settings = TrainSettings(micro_batch_size=8, **knobs)
    job = Job("trial", WorkloadRef(str(file)), settings=settings, global_batch_size=8, threads=threads, plan=PLAN)
    job = Job(**{**job.__dict__, "budget_bytes": budget_bytes})
    directory = folder / f"trial{len(list(folder.iterdir()))}"
    return run_out(TrialRun(launcher.launch(job, directory), Limits()))


STATE = """
def state():
    return {
        "argv": sys.argv, "path": sys.path, "flags": list(sys.flags), "executable": sys.executable,
        "main": [sys.modules["__main__"].__name__, sys.modules["__main__"].__file__],
        "orig_argv": sys.orig_argv,
        "environ": {k: v for k, v in os.environ.items() if not k.startswith("GPUTUNE_") and k != "PYTEST_CURRENT_TEST"},
        "our_names": sorted(k for k in os.environ if k.startswith("GPUTUNE_")),
        "cwd": os.getcwd(), "umask": [os.umask(0o77), os.umask(0o22)][0],
        "stdin": os.read(0, 1).decode(), "streams": [os.readlink(f"/proc/self/fd/{n}")[:6] for n in (0, 1, 2)],
        "seekable": sys.stdout.seekable(), "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering],
        "fds": len([1 for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}")]),
        "inherited": [n for n in range(3, 200) if is_open(n) and os.get_inheritable(n)],
        "signals": {int(n): str(signal.getsignal(n)).partition(" at ")[0] for n in signal.valid_signals()},
        "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "leads_its_group": os.getpgid(0) == os.getpid(),
        "keeper_leads_the_session": os.getsid(0) == os.getppid(),
        "keeper": [w for w in Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\\0") if "keeper.py" in w],
        "job_in_proc": os.environ["GPUTUNE_JOB"].encode() in Path("/proc/self/environ").read_bytes(),
        "command_line": Path("/proc/self/cmdline").read_text().strip("\\0").split("\\0"),
        "comm": Path("/proc/self/comm").read_text(),
        "pdeath": pdeath(), "limits": [resource.getrlimit(n) for n in range(16)],
        "threads": [threading.active_count(), threading.current_thread() is threading.main_thread()],
        "torch_threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "start_method": multiprocessing.get_start_method(allow_none=True),
        "parent": multiprocessing.parent_process(), "daemon": multiprocessing.current_process().daemon,
        "frozen": gc.get_freeze_count(), "gc": [gc.isenabled(), gc.get_threshold()],
        "seeds": [random.random(), torch.rand(1).item(), torch.initial_seed()],
        "denormals": torch.tensor([1e-40]).mul(1).item() == 0,
        "grad": [torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), str(torch.get_default_dtype())],
        "nvml_check": os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"),
        "libraries": [name in sys.modules for name in ("torch._dynamo", "torchvision", "numpy")],
    }
def is_open(n):
    try: os.fstat(n)
    except OSError: return False
    return True
def pdeath():
    import ctypes
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number))
    return number.value
json.dump(state(), open({told!r}, "w"), default=str)
"""


def test_everything_that_a_process_can_see_of_itself_is_the_same(warm: WarmLauncher, tmp_path: Path) -> None:
    told = []
    for launcher in (LocalLauncher(), warm):
        run = run_workload(launcher, tmp_path, STATE.replace("{told!r}", repr(str(tmp_path / "told.json"))), threads=2)
        assert run.state is TrialState.COMPLETE, run.failure
        told.append(json.loads((tmp_path / "told.json").read_text()))
    fresh, forked = told
    for name, value in fresh.items():
        assert forked[name] == value, name
    assert fresh["pdeath"] == 9
    assert fresh["job_in_proc"]
    assert fresh["torch_threads"][0] == 2


BIG = """
class Workload(Workload):
    def build_model(self):
        # Many tensors of 1 MiB: whether glibc gives a freed one back at once differs from run to run.
        return nn.Sequential(nn.Linear(4, 512), *(nn.Linear(512, 512) for _ in range(24)), nn.Linear(512, 1))
    def largest_batch(self, n): return torch.ones(n, 4)
    def eval_step(self, model, batch): model(batch)
"""


def test_memory_figures_of_both_launches_agree(warm: WarmLauncher, tmp_path: Path) -> None:
    fresh, forked = (run_workload(launcher, tmp_path, BIG) for launcher in (LocalLauncher(), warm))
    for run in (fresh, forked):
        assert run.state is TrialState.COMPLETE, run.failure
    assert fresh.seen.fixed_overhead_bytes is not None
    assert forked.seen.fixed_overhead_bytes is not None
    assert abs(fresh.seen.fixed_overhead_bytes - forked.seen.fixed_overhead_bytes) < OVERHEAD_AGREES_BYTES
    one, other = fresh.seen.memory.device_peak_bytes, forked.seen.memory.device_peak_bytes
    assert one is not None
    assert other is not None
    # 6.3 million parameters with gradients and two moments of AdamW.
    assert one - fresh.seen.fixed_overhead_bytes > 64 << 20
    assert abs(one - other) < PEAK_AGREES_BYTES
    hosts = [run.seen.memory.host_peak_bytes or 0 for run in (fresh, forked)]
    assert abs(hosts[0] - hosts[1]) < PEAK_AGREES_BYTES
    assert {peak.phase for peak in forked.seen.launch().phase_peaks} >= {"build", "warm_up"}


def test_the_budget_is_held_alike(warm: WarmLauncher, tmp_path: Path) -> None:
    source = """
    class Workload(Workload):
        def build_model(self): return nn.Linear(4, 1 << 26)
    """
    for launcher in (LocalLauncher(), warm):
        run = run_workload(launcher, tmp_path, source, budget_bytes=900 << 20)
        assert run.failure is not None
        assert run.failure.reason is FailureReason.OVER_BUDGET, run.failure


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_loader_workers_of_every_start_method(warm: WarmLauncher, tmp_path: Path, context: str) -> None:
    run = run_workload(
        warm,
        tmp_path,
        f"""
        class Many(Numbers):  # enough for one epoch, since each starts its workers anew
            def __len__(self): return 1 << 20
        class Workload(Workload):
            def build_loader(self, **settings):
                return DataLoader(Many(), batch_size=8, num_workers=2, multiprocessing_context={context!r})
        """,
    )
    assert run.state is TrialState.COMPLETE, run.failure


def test_a_pool_that_is_spawned_by_the_workload(warm: WarmLauncher, tmp_path: Path) -> None:
    run = run_workload(
        warm,
        tmp_path,
        """
        def square(x): return x * x
        class Workload(Workload):
            def build_model(self):
                with multiprocessing.get_context("spawn").Pool(2) as pool:
                    assert pool.map(square, [1, 2, 3]) == [1, 4, 9]
                return super().build_model()
        """,
    )
    assert run.state is TrialState.COMPLETE, run.failure


def test_torch_and_numpy_start_their_threads_in_a_forked_trial(warm: WarmLauncher, tmp_path: Path) -> None:
    run = run_workload(
        warm,
        tmp_path,
        """
        import numpy
        class Workload(Workload):
            def build_model(self):
                for _ in range(3):
                    large = torch.randn(512, 512, requires_grad=True)
                    (large @ large).relu().sum().backward()
                    nn.functional.conv2d(torch.randn(8, 16, 64, 64), torch.randn(16, 16, 3, 3))
                a = numpy.ones((700, 700))
                assert (a @ a)[0, 0] == 700
                assert len(os.listdir("/proc/self/task")) > 1, "nothing ran in parallel"
                return super().build_model()
        """,
        threads=2,
    )
    assert run.state is TrialState.COMPLETE, run.failure


def test_two_trials_draw_alike_and_a_library_that_seeds_itself_does_not(warm: WarmLauncher, tmp_path: Path) -> None:
    told = tmp_path / "told"
    source = f"""
    import numpy.random, tempfile, uuid
    draws = [random.random(), torch.rand(1).item(), numpy.random.rand()]
    own = [str(uuid.uuid4()), next(tempfile._get_candidate_names()), numpy.random.default_rng().random()]
    json.dump([draws, own], open({str(told)!r}, "w"))
    """
    seen = []
    for _ in range(2):
        assert run_workload(warm, tmp_path, source).state is TrialState.COMPLETE
        seen.append(json.loads(told.read_text()))
    assert seen[0][0] == seen[1][0]
    assert not set(seen[0][1]) & set(seen[1][1])
