"""Workloads that do to their process what they should not: nothing is left running and nothing else suffers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputune_tui.domain.trial import FailureReason
from gputune_tui.trial import supervisor
from gputune_tui.trial.launcher import LOG_CAP_BYTES
from gputune_tui.trial.supervisor import Limits

from .conftest import RunCase
from .running import SHORT_STALL_S

pytestmark = pytest.mark.slow

BUILD = """
import atexit, ctypes, shutil, subprocess, tempfile, threading
class Workload(Base):
    def build_model(self):
        {body}
        return super().build_model()
"""
DAEMON = "os.fork() or (os.setsid(), os.fork() or time.sleep(600), os._exit(0))"


@pytest.mark.parametrize(
    "body",
    [
        "os.chdir('/'); sys.argv[:] = ['--x']",
        "[subprocess.Popen(['sleep', '600'], start_new_session=True) for _ in range(3)]; " + DAEMON,
        "threading.Thread(target=time.sleep, args=(600,)).start()",
        "sys.stdout.close(); sys.stderr.close(); os.close(1); os.close(2)",
        "sys.stdout = sys.stderr = None",
        "os.environ.clear()",
        "os.closerange(0, 4096)",
        "os.closerange(3, 4096); self.files = [open(__file__) for _ in range(16)]",
        "gone = tempfile.mkdtemp(); os.chdir(gone); os.rmdir(gone)",
        "atexit.register(time.sleep, 600)",
        "sys.excepthook = sys.unraisablehook = None; sys.settrace(lambda *_: None)",
        "shutil.rmtree(os.path.dirname(os.path.dirname(__file__)))",
        "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15, 17)]",
        "os.system('tput clear; stty sane'); ctypes.CDLL(None).write(2, b'native', 6)",
    ],
)
def test_the_trial_is_measured_all_the_same(run_case: RunCase, body: str) -> None:
    result = run_case(BUILD.format(body=body))
    assert result.is_complete, result.message


def test_files_that_take_the_place_of_closed_descriptors_stay_the_users(run_case: RunCase, tmp_path: Path) -> None:
    files = [str(tmp_path / f"own{n}") for n in range(16)]
    result = run_case(BUILD.format(body=f"os.closerange(3, 4096); self.files = [open(f, 'w') for f in {files}]"))
    assert result.is_complete, result.message
    assert not any(Path(file).read_bytes() for file in files)


CLOSING = """
class Workload(Base):
    def loss(self, model, batch):
        {fault}
        return super().loss(model, batch)
    def close(self):
        {close}
"""


@pytest.mark.parametrize("close", ["raise ValueError('not now')", "sys.exit(3)", "os._exit(3)", "time.sleep(600)"])
@pytest.mark.parametrize("fault", ["pass", "raise KeyError('cat')"])
def test_what_a_workload_does_at_its_end_costs_no_result(
    run_case: RunCase, monkeypatch: pytest.MonkeyPatch, fault: str, close: str
) -> None:
    monkeypatch.setattr(supervisor, "LEAVE_S", 0.5)
    result = run_case(CLOSING.format(fault=fault, close=close))
    if fault == "pass":
        assert result.is_complete, result.message
    else:
        assert "KeyError: 'cat'" in result.message
    if "not now" in close:
        assert any("closing failed: ValueError: not now (wl.py:" in note for note in result.seen.notes)


def test_a_process_that_stops_itself_is_named_as_that(run_case: RunCase) -> None:
    body = "os.kill(os.getpid(), signal.SIGSTOP)"
    result = run_case(BUILD.format(body=body), limits=Limits(stall_s=SHORT_STALL_S))
    assert result.reason is FailureReason.STALLED
    assert "because its process was stopped (SIGSTOP)" in result.message
    assert "build_model" in result.message, "let go on, it told where it was"


def test_children_of_children_are_all_ended(run_case: RunCase) -> None:
    body = "[os.fork() or os.setsid() for _ in range(5)]; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    assert run_case(BUILD.format(body=body), limits=Limits(stall_s=SHORT_STALL_S)).reason is FailureReason.STALLED


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        ("os.fork() and os._exit(0); os.setsid(); time.sleep(600)", FailureReason.ENDED_EARLY, "ended by itself"),
        ("os.killpg(0, signal.SIGKILL)", FailureReason.KILLED, "SIGKILL"),
        ("signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(60)", FailureReason.CRASH, "SIGALRM"),
    ],
)
def test_it_ends_before_it_is_measured(run_case: RunCase, body: str, reason: FailureReason, words: str) -> None:
    result = run_case(BUILD.format(body=body))
    assert result.reason is reason
    assert words in result.message
    assert "while building the model" in result.message


def test_fifty_megabytes_on_each_stream_cost_a_capped_log(run_case: RunCase) -> None:
    body = "[os.write(fd, b'x' * (1 << 20)) for _ in range(50) for fd in (1, 2)]"
    result = run_case(BUILD.format(body=body))
    assert result.is_complete, result.message
    assert result.log.stat().st_size < 2 * LOG_CAP_BYTES + 4096


def test_a_killed_keeper_leaves_nothing_in_sessions_of_its_own(run_case: RunCase) -> None:
    body = (
        "[subprocess.Popen(['sh', '-c', 'sleep 600; true'], start_new_session=True) for _ in range(3)]; "
        "os.kill(os.getppid(), 9); time.sleep(600)"
    )
    result = run_case(BUILD.format(body=body))
    assert result.reason is FailureReason.KILLED
    assert "keeper" in result.message


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_hangs_is_ended_with_its_workers(run_case: RunCase, workers: int) -> None:
    source = """
class Data(Numbers):
    def __getitem__(self, i):
        time.sleep(600)
class Workload(Base):
    def build_dataset(self): return Data()
"""
    result = run_case(source, limits=Limits(stall_s=SHORT_STALL_S), num_workers=workers)
    assert result.reason is FailureReason.STALLED
    assert "waiting for data" in result.message


@pytest.mark.parametrize("workers", [0, 2])
def test_a_cancelled_trial_leaves_no_worker_that_hangs(run_case: RunCase, tmp_path: Path, workers: int) -> None:
    asleep = tmp_path / "asleep"
    source = f"""
class Data(Numbers):
    def __getitem__(self, i):
        open({str(asleep)!r}, "w").close()
        time.sleep(600)
class Workload(Base):
    def build_dataset(self): return Data()
"""
    result = run_case(source, stop_when=asleep.exists, num_workers=workers)
    assert result.reason is FailureReason.KILLED
    assert "interrupted while waiting for data" in result.message


def test_a_worker_that_is_stopped_is_a_stall(run_case: RunCase) -> None:
    source = """
class Data(Numbers):
    def __getitem__(self, i):
        os.kill(os.getpid(), signal.SIGSTOP)
class Workload(Base):
    def build_dataset(self): return Data()
"""
    result = run_case(source, limits=Limits(stall_s=SHORT_STALL_S), num_workers=2)
    assert result.reason is FailureReason.STALLED, "not a worker that died of the stop"
    assert "waiting for data" in result.message


REMOVING = """
import contextlib, glob
torch.multiprocessing.set_sharing_strategy("{strategy}")
class Workload(Base):
    def loss(self, model, batch):
        for child in open(f"/proc/self/task/{{os.getpid()}}/children").read().split():
            for file in glob.glob(f"/dev/shm/torch_{{child}}_*"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(file)
        return super().loss(model, batch)
"""


def test_shared_memory_that_is_removed(run_case: RunCase) -> None:
    """As systemd does at a logout. By default torch's files have no name by then."""
    result = run_case(REMOVING.format(strategy="file_descriptor"), num_workers=2)
    assert result.is_complete or "shared memory file" in result.message, "removed in the moment before torch does"
    result = run_case(REMOVING.format(strategy="file_system"), num_workers=2)
    assert result.reason in (FailureReason.SHM, FailureReason.CRASH), "torch refuses, or its C++ part ends the process"
    assert "shared memory file" in result.message
    assert run_case("class Workload(Base): pass", num_workers=2).is_complete


REMOVING_SEMAPHORES = """
import glob
class Workload(Base):
    before = set(glob.glob("/dev/shm/sem.*"))
    def build_loader(self, batch_size, num_workers):
        return DataLoader(Numbers(), batch_size, num_workers=num_workers, persistent_workers=True,
                          multiprocessing_context={context!r})
    def loss(self, model, batch):
        for file in set(glob.glob("/dev/shm/sem.*")) - self.before:
            os.unlink(file)
        return super().loss(model, batch)
"""


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_semaphores_that_are_removed(run_case: RunCase, context: str) -> None:
    """As systemd does at a logout: whoever has opened them keeps them."""
    result = run_case(REMOVING_SEMAPHORES.format(context=context), num_workers=2)
    assert result.is_complete, result.message
    assert run_case("class Workload(Base): pass", num_workers=2).is_complete


@pytest.mark.parametrize("kept", [False, True])
def test_no_file_descriptor_is_left_for_the_trial_itself(run_case: RunCase, kept: bool) -> None:
    source = f"""
import resource
class Workload(Base):
    files = []
    def loss(self, model, batch):
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True: self.files.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            if not {kept}: raise
        return super().loss(model, batch)
"""
    result = run_case(source)
    if kept:
        assert result.is_complete, result.message
    else:
        assert result.reason is FailureReason.FILE_LIMIT
        assert "the limit is 64" in result.message


def test_too_few_file_descriptors_are_named(run_case: RunCase) -> None:
    result = run_case(
        """
        import resource
        class Data(Numbers):
            def __getitem__(self, i): return [torch.ones(4) for _ in range(6)]
        class Workload(Base):
            kept = []
            def build_model(self):
                few = len(os.listdir("/proc/self/fd")) + 16
                resource.setrlimit(resource.RLIMIT_NOFILE, (few, few))
                return super().build_model()
            def build_dataset(self): return Data()
            def loss(self, model, batch):
                self.kept.append(batch)
                return model(batch[0]).pow(2).mean()
        """,
        limits=Limits(stall_s=SHORT_STALL_S),
        num_workers=2,
    )
    # torch loses a batch in silence where the worker runs out first; its output then says why.
    assert result.reason in (FailureReason.FILE_LIMIT, FailureReason.STALLED)
    assert "too many open files" in result.message.lower()
