"""The trial's end of the event pipe: what it sends, what it survives, and its answer to SIGTERM."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputune_tui.domain.job import CONTROL_VARIABLE, EVENTS_PLACE_VARIABLE, EVENTS_VARIABLE
from gputune_tui.domain.protocol import Event, Finish, Note, Phase, RunBlock, Stopped, decode, encode_order
from gputune_tui.errors import ProtocolError
from gputune_tui.trainer import events as events_module
from gputune_tui.trainer.describe import OWN_PACKAGE
from gputune_tui.trainer.events import BEAT_S, EventSink, Orders, what_runs
from tests.trainer.scripted import Clock

ROOT = Path(__file__).parents[2]


class Pipe:
    """A pipe whose lines are read as events."""

    def __init__(self) -> None:
        reader, self.writer = os.pipe()
        self.file = os.fdopen(reader, "rb", buffering=0)

    def read(self) -> list[Event]:
        """What was written, once the writing end is closed."""
        self.close_writer()
        return [decode(line) for line in self.file.read().splitlines(keepends=True)]

    def close_writer(self) -> None:
        """Close it once."""
        if self.writer >= 0:
            os.close(self.writer)
        self.writer = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close_writer()
    made.file.close()


def test_events_come_one_a_line_in_order(pipe: Pipe) -> None:
    sink = EventSink(pipe.writer)
    sent: list[Event] = [Note("grüße\nzwei"), Phase("build", "x"), Note("")]
    for event in sent:
        sink.send(event)
    assert pipe.read() == sent


def test_a_parent_that_left_is_no_error(pipe: Pipe) -> None:
    sink = EventSink(pipe.writer)
    pipe.file.close()
    sink.send(Note("nobody reads this"))
    sink.phase("measure")


def test_without_a_pipe_nothing_is_sent() -> None:
    EventSink(None).send(Note("x"))


def test_a_beat_repeats_the_phase_but_not_too_often(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(events_module, "time", clock)
    sink = EventSink(pipe.writer)
    sink.phase("warm_up")
    for _ in range(100):
        clock.wait(BEAT_S / 16)
        sink.beat("slow")
    found = pipe.read()
    assert found[0] == Phase("warm_up")
    assert set(found[1:]) == {Phase("warm_up", "slow")}
    assert len(found) - 1 == 100 // 17


@pytest.mark.parametrize("text", [None, "", "x", "-1", "3.5"])
def test_a_trial_without_a_parent_runs_all_the_same(text: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EVENTS_VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(EVENTS_VARIABLE, text)
    EventSink.from_environment().send(Note("x"))


def test_programs_that_the_trial_starts_do_not_inherit_the_pipe(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    os.set_inheritable(pipe.writer, True)
    monkeypatch.setenv(EVENTS_VARIABLE, str(pipe.writer))
    EventSink.from_environment().send(Note("x"))
    assert not os.get_inheritable(pipe.writer)
    assert pipe.read() == [Note("x")]


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_process_of_a_command_finds_the_pipe_that_its_launcher_has_closed(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    os.set_inheritable(pipe.writer, True)
    place = f"{os.fstat(pipe.writer).st_ino} /proc/{os.getpid()}/fd/{pipe.file.fileno()}"
    monkeypatch.setenv(EVENTS_PLACE_VARIABLE, place)
    # In place of a number that is another file's by now.
    monkeypatch.setenv(EVENTS_VARIABLE, "0" if is_closed else str(pipe.writer))
    sink = EventSink.of_command()
    sink.send(Note("x"))
    assert os.get_inheritable(pipe.writer)
    if is_closed:
        assert sink._pipe is not None
        os.close(sink._pipe._fd)
    assert pipe.read() == [Note("x")]


def test_a_command_without_a_parent_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("", "17", "17 /nowhere", f"17 {os.devnull}"):
        monkeypatch.setenv(EVENTS_PLACE_VARIABLE, place)
        EventSink.of_command().send(Note("x"))


HOLDER = """
import os, sys
from gputune_tui.trainer.events import EventSink, Orders
from gputune_tui.domain.protocol import Note, RunBlock
events, control = map(int, sys.argv[1:])
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))  # as the keeper does, it holds the pipes
os.environ["GPUTUNE_CONTROL_FD"] = str(control)
sink, orders = EventSink(events), Orders()
os.closerange(3, 1000)
own = [os.open(os.devnull, os.O_RDWR) for _ in range(max(events, control))]
sink.send(Note("after"))
assert orders.next() == RunBlock()
sink.send(Note("and again"))
os._exit(0)
"""


def test_descriptors_that_user_code_closes_are_opened_again(pipe: Pipe) -> None:
    reader, writer = os.pipe()
    os.write(writer, encode_order(RunBlock()))
    command = [sys.executable, "-c", HOLDER, str(pipe.writer), str(reader)]
    subprocess.run(command, pass_fds=[pipe.writer, reader], timeout=60, check=True)
    os.close(reader)
    os.close(writer)
    assert pipe.read() == [Note("after"), Note("and again")]


def test_orders_come_one_a_line_until_the_parent_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setenv(CONTROL_VARIABLE, str(reader))
    orders = Orders()
    os.write(writer, encode_order(RunBlock()) + encode_order(Finish()))
    assert orders.next() == RunBlock()
    assert orders.next() == Finish()
    os.write(writer, b"stop it\n")
    with pytest.raises(ProtocolError, match="not JSON"):
        orders.next()
    os.close(writer)
    assert orders.next() is None
    os.close(reader)


def stack(*frames: tuple[str, str]) -> types.FrameType:
    """A real stack of functions, (file, name) each, outermost first; gives its innermost frame."""
    caught: list[types.FrameType] = []
    source = "import sys\n" * 3 + "def {name}(rest):\n    rest() if rest else caught.append(sys._getframe())\n"
    call = None
    for path, name in reversed(frames):
        names: dict[str, object] = {"caught": caught}
        exec(compile(source.format(name=name), path, "exec"), names)  # frames of files that are not there
        function, inner = names[name], call
        assert callable(function)
        call = functools.partial(function, inner)  # adds no frame of its own
    assert call is not None
    call()
    return caught[0]


SITE = "/env/lib/python3.12/site-packages"
USER = "/home/me/train.py"
OWN = OWN_PACKAGE.rstrip("/")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([(USER, "main")], ("measure", "train.py:5 main")),
        ([(f"{OWN}/trainer/loader.py", "windows")], ("measure", "")),
        (
            [(f"{OWN}/trainer/loader.py", "windows"), (f"{SITE}/torch/utils/data/dataloader.py", "__next__")],
            ("data_wait", ""),
        ),
        (
            [
                (f"{SITE}/torch/utils/data/_utils/fetch.py", "fetch"),
                (USER, "__getitem__"),
                (f"{SITE}/PIL/I.py", "load"),
            ],
            ("data_wait", "train.py:5 __getitem__"),
        ),
        ([(f"{SITE}/torch/_tensor.py", "backward"), (USER, "backward")], ("backward", "train.py:5 backward")),
        ([(f"{SITE}/torch/autograd/__init__.py", "_engine")], ("backward", "")),
        ([(f"{SITE}/torch/optim/adamw.py", "step")], ("optimizer", "")),
        ([(f"{OWN}/trainer/workload.py", "loss"), (USER, "loss")], ("forward", "train.py:5 loss")),
        ([(f"{OWN}/trainer/workload.py", "mean_loss"), (USER, "loss")], ("forward", "train.py:5 loss")),
        ([(USER, "outer"), ("/home/me/helper.py", "inner")], ("measure", "helper.py:5 inner")),
        ([("/usr/lib/python3.12/threading.py", "wait")], ("measure", "")),
        ([("<frozen importlib._bootstrap>", "_load")], ("measure", "")),
    ],
)
def test_what_a_stack_is_doing(frames: list[tuple[str, str]], expected: tuple[str, str]) -> None:
    activity, where = what_runs(stack(*frames), "measure")
    assert activity == expected[0]
    # Below the scripted frames stands this file, which is a user's like any other.
    assert where == expected[1] or (expected[1] == "" and where.startswith(Path(__file__).name))


def test_no_stack_at_all() -> None:
    assert what_runs(None, "warm_up") == ("warm_up", "")


TRIAL = """
import os, sys
from gputune_tui.trainer.events import EventSink
sys.path.insert(0, {folder!r})
from gputune_tui.domain.protocol import Note
sink = EventSink.from_environment()
sink.answer_sigterm()
sink.phase("measure")
import users_code
os.fork()
# A child tells that it runs: Python drops signals that come in the middle of a fork.
sink.send(Note(str(os.getpid())))
users_code.wait_forever()
"""


def test_sigterm_is_answered_with_what_was_running_and_workers_just_end(pipe: Pipe, tmp_path: Path) -> None:
    (tmp_path / "users_code.py").write_text("import time\n\ndef wait_forever():\n    time.sleep(600)\n")
    os.set_inheritable(pipe.writer, True)
    trial = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(TRIAL).format(folder=str(tmp_path))],
        env={**os.environ, EVENTS_VARIABLE: str(pipe.writer), "PYTHONPATH": str(ROOT)},
        pass_fds=[pipe.writer],
        start_new_session=True,
    )
    pipe.close_writer()
    try:
        assert decode(pipe.file.readline()) == Phase("measure")
        assert {type(decode(pipe.file.readline())) for _ in range(2)} == {Note}
        os.killpg(trial.pid, signal.SIGTERM)
        rest = pipe.file.read()  # ends when the trial and its worker have both left
        assert trial.wait(60) == 128 + signal.SIGTERM
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(trial.pid, signal.SIGKILL)
        trial.wait()
    found = [decode(line) for line in rest.splitlines(keepends=True)]
    assert len(found) == 1
    [stopped] = found
    assert isinstance(stopped, Stopped)
    assert stopped.activity == "measure"
    # Where the signal came in the instant between the note and the wait, the place is not yet the user's.
    assert stopped.where in ("", "users_code.py:4 wait_forever", "users_code.py:3 wait_forever")
