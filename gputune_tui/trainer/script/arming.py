"""What the start-up hook does in each process of a command once torch is imported: watch it, set knobs in it."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from gputune_tui.domain.job import JOB_VARIABLE, RUN_VARIABLE, Job
from gputune_tui.domain.plain import from_plain
from gputune_tui.domain.protocol import Note
from gputune_tui.errors import ExitCode
from gputune_tui.trainer.events import EventSink
from gputune_tui.trainer.script.detector import ScriptDetector
from gputune_tui.trainer.script.ending import Ending, end_with_children
from gputune_tui.trainer.script.injection import Injection
from gputune_tui.trainer.script.loaders import Refuse
from gputune_tui.trainer.script.meter import ScriptMeter
from gputune_tui.trainer.script.model import CallCount
from gputune_tui.trainer.script.observer import ScriptObserver
from gputune_tui.trainer.script.patches import Patches
from gputune_tui.trainer.script.promise import Promise
from gputune_tui.trainer.script.ranks import SPEAKER_FILE, rank_and_world_size, trial_folder
from gputune_tui.trainer.script.window import Window
from gputune_tui.trainer.script.witness import StepWitness
from gputune_tui.trainer.seeding import seed_everything


def arm() -> None:
    """Do what the job in the environment says; one that is to be measured goes before one that is to be run."""
    patches = Patches()
    if JOB_VARIABLE not in os.environ:
        _arm_run(from_plain(Job, json.loads(os.environ[RUN_VARIABLE])), patches)
        return
    job = from_plain(Job, json.loads(Path(os.environ[JOB_VARIABLE]).read_text(encoding="utf-8")))
    events = EventSink.of_command()
    end_with_children(patches)
    # A script that seeds itself does so after this; unseeded, each launch would draw other weights and other data, and
    # the guard would compare two trainings that have nothing in common.
    seed_everything(job.seed)
    if not os.path.exists(trial_folder() / SPEAKER_FILE):
        events.phase("script")
    if job.kind == "detect":
        _arm_detection(job, events, patches)
    else:
        _arm_trial(job, events, patches)


def _arm_run(job: Job, patches: Patches) -> None:
    """The real job: its settings, a line on stderr for each, and a look at its first steps."""

    def say(text: str) -> None:
        print(f"gputune-tui: {text}", file=sys.stderr, flush=True)

    def refuse(reason: str) -> NoReturn:
        say(f"the job cannot run under these settings: {reason}")
        sys.exit(ExitCode.USAGE)

    say_once = once(say if rank_and_world_size()[0] == 0 else lambda _text: None)
    injection = _injection(job, refuse, say_once)
    by_loader = job.claim is not None and job.script.counted_by == "loader"
    injection.install(patches, watch_batches=by_loader)
    if injection.accumulation is not None:
        atexit.register(_tell_unfinished, injection.accumulation.window, say_once)
    steps = AfterStep()
    steps.call(injection.finder.step_done)
    if job.claim is not None and by_loader:
        promise = Promise(job.claim, injection.loaders.samples, say_once, injection.loaders.rest)
        promise.tell_torch()
        steps.call(promise.look)


def _tell_unfinished(window: Window, say: Callable[[str], None]) -> None:
    if window.was_broken_off:
        say(
            "the loop was left before the end of an epoch, by a count of iterations perhaps: these are of smaller "
            "batches now, so it has trained on fewer samples than by itself"
        )


def _arm_detection(job: Job, events: EventSink, patches: Patches) -> None:
    ending = Ending(job, events, lambda: None, lambda: None)
    injection = _injection(job, ending.refuse, lambda _text: None)
    injection.optimizers.install(patches)
    injection.loaders.keeps_loaders = True
    injection.loaders.install(patches, watch_batches=True)
    observer = ScriptObserver(injection.loaders, injection.finder, job.workload.samples_per_step)
    observer.install(patches)
    injection.finder.install()
    AfterStep().call(injection.finder.step_done)
    ScriptDetector(observer, events, ending).arm()


def _arm_trial(job: Job, events: EventSink, patches: Patches) -> None:
    order = job.script
    by_loader = order.counted_by == "loader"
    calls = CallCount()
    witness = StepWitness()
    meter = ScriptMeter(job, events, witness)
    # Before anything is allocated or refused: what comes is reported, and held to the budget.
    meter.arm()

    def tell(text: str) -> None:
        events.send(Note(text))
        print(f"gputune-tui: {text}", file=sys.stderr, flush=True)  # for the log

    injection = _injection(job, meter.ending.refuse, once(tell))
    injection.install(patches, watch_batches=by_loader)
    injection.loaders.on_batch = meter.beat
    if injection.accumulation is not None:
        witness.window = injection.accumulation.window
    # The outermost wrapper of backward() sees the loss as the script has it.
    witness.install(patches)
    if by_loader:
        meter.count(injection.loaders.samples, injection.loaders.wait_s)
    elif order.counted_by == "model":
        injection.watch_calls(calls, patches)
        meter.count(lambda: calls.samples)
    AfterStep().call(injection.finder.step_done)


def _injection(job: Job, refuse: Refuse, note: Callable[[str], None]) -> Injection:
    assert job.settings is not None
    return Injection(job.settings, job.script, "cpu" if job.device == "cpu" else "cuda", refuse, note)


def once(say: Callable[[str], None]) -> Callable[[str], None]:
    """The same, each text once: a script builds its loaders anew for every epoch."""
    said: set[str] = set()

    def first_time(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return first_time


class AfterStep:
    """One hook for all that waits for optimizer steps: torch does not bear that a hook takes itself away."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[Optimizer], bool]] = []
        register_optimizer_step_post_hook(self._after_step)

    def call(self, callback: Callable[[Optimizer], bool]) -> None:
        """After each step, until it says that it has seen enough."""
        self._waiting.append(callback)

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._waiting:
            self._waiting = [callback for callback in self._waiting if not callback(optimizer)]
