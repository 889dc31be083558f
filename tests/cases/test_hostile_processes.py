"""Workloads that do to their process what they should not: nothing is left running and nothing else suffers."""

from __future__ import annotations

import pytest

from gputune_tui.domain.trial import FailureReason
from gputune_tui.trial.launcher import LOG_CAP_BYTES
from gputune_tui.trial.supervisor import Limits

from .conftest import RunCase

pytestmark = pytest.mark.slow

BUILD = """
import ctypes, shutil, subprocess, threading
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
        "shutil.rmtree(os.path.dirname(os.path.dirname(__file__)))",
        "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15, 17)]",
        "os.system('tput clear; stty sane'); ctypes.CDLL(None).write(2, b'native', 6)",
    ],
)
def test_the_trial_is_measured_all_the_same(run_case: RunCase, body: str) -> None:
    result = run_case(BUILD.format(body=body))
    assert result.is_complete, result.message


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
    result = run_case(source, limits=Limits(stall_s=15), num_workers=workers)
    assert result.reason is FailureReason.STALLED
    assert "waiting for data" in result.message


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
        limits=Limits(stall_s=15),
        num_workers=2,
    )
    # torch loses a batch in silence where the worker runs out first; its output then says why.
    assert result.reason in (FailureReason.FILE_LIMIT, FailureReason.STALLED)
    assert "too many open files" in result.message.lower()
