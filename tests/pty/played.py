"""The program on a study whose trials are played by the fake interpreter: everything is real but torch."""

from __future__ import annotations

from pathlib import Path

from gputune_tui.domain.trial import Trial
from gputune_tui.store.reading import read_study
from tests.engine.driving import wait_until
from tests.engine.fake_interpreter import fake_interpreter

from .conftest import Start
from .terminal import DEADLINE_S, Terminal

HOLD = "hold"
SPACE = "micro_batch_size=4,2"


def played(folder: Path, **options: str | Path) -> tuple[str | Path, ...]:
    """The arguments; while the file HOLD is in the folder, a trial stands still after each of its blocks."""
    (folder / "work.py").touch()
    given = [word for key, value in options.items() for word in ("-D", f"{key}={value}")]
    interpreter = fake_interpreter(folder)
    where = ("--device", "cpu", "--budget", "1GiB", "--study", folder / "study", "--python", interpreter)
    return ("./work.py", *where, "-D", f"hold={folder / HOLD}", "--space", SPACE, *given)


def in_the_middle(start: Start, folder: Path, child: bool = True) -> Terminal:
    """One trial is finished, and another one stands at its first block, with a child in a session of its own."""
    terminal = start(*played(folder, **({"child": "1"} if child else {})))
    terminal.wait_for("8 x 1", "r runs B")
    terminal.keys("r")
    terminal.wait_for("1 done", "Idle")
    (folder / HOLD).touch()
    terminal.keys("right")
    terminal.wait_for("▸ bf16")
    terminal.keys("r")
    terminal.wait_for("measuring", "block 1 of 4")
    roles = list(terminal.processes().values())
    assert len(roles) == 5 + child, f"screen, engine, sampler, keeper, trial and its child: {roles}"
    return terminal


def stored(folder: Path) -> list[Trial]:
    """The trials of the study as any reader sees them."""
    (generation,) = read_study(folder / "study").generations
    return list(generation.trials)


def ends(folder: Path) -> list[tuple[str, str | None]]:
    """State and failure reason of every stored trial."""
    return [(trial.state.value, trial.failure.reason.value if trial.failure else None) for trial in stored(folder)]


def release(folder: Path) -> None:
    """Let the trial that stands still go on, and wait until it is stored as complete."""
    (folder / HOLD).unlink()
    wait_until(lambda: ends(folder)[-1] == ("COMPLETE", None), DEADLINE_S, "the trial did not go on")
