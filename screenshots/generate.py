"""Make the pictures of the README: `python screenshots/generate.py [--only node|tune]`.

`node.svg` shows a simulated node, and says so in its first line. `tune.svg` is a real search and a real comparison on
this machine's CPU (a few minutes; the figures are what was measured). Nothing in either is drawn by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.engine.client import EngineClient
from gputune_tui.engine.commands import Search, StudyConfig
from gputune_tui.telemetry.collector import Collector
from gputune_tui.tui.app import GputuneApp
from gputune_tui.tui.bridge import Bridge
from gputune_tui.tui.screens.main_screen import MainScreen
from gputune_tui.tui.terminal import Look

FOLDER = Path(__file__).parent
DEADLINE_S = 900.0
GRAPH_TICKS = 40
SPACE = "precision=fp32,bf16;micro_batch_size=8,16"


async def until(pilot: Pilot[int], reached: Callable[[], bool]) -> None:
    """Let the program run until something is so."""
    waited_s = 0.0
    while not reached():
        await pilot.pause(0.2)
        waited_s += 0.2
        if waited_s > DEADLINE_S:
            raise TimeoutError("the screen never came to what the picture is to show")


def app_for(bridge: Bridge, config: StudyConfig | None) -> tuple[GputuneApp, MainScreen]:
    """The program and its screen."""
    app = GputuneApp(lambda: bridge, config, Search(SPACE), Look(ansi=False, ascii=False))
    screen = app.get_default_screen()
    assert isinstance(screen, MainScreen)
    return app, screen


async def node_picture() -> None:
    """The monitor tab over a simulated node of three GPUs."""
    sampler = [sys.executable, "-m", "gputune_tui.telemetry.sampler", "--simulate", "3"]
    bridge = Bridge(EngineClient(), Collector(sampler, interval_s=0.25))
    app, screen = app_for(bridge, None)
    try:
        async with app.run_test(size=(100, 36)) as pilot:
            await until(pilot, lambda: app.screen is not screen)
            await pilot.press("escape", "1")
            seen: list[float] = []

            def enough() -> bool:
                snapshot = screen.node.snapshot
                if snapshot is not None and snapshot.time_s not in seen:
                    seen.append(snapshot.time_s)
                return len(seen) > GRAPH_TICKS

            await until(pilot, enough)
            save(app, "node.svg")
    finally:
        bridge.close()


async def tune_picture() -> None:
    """A search over four settings of `lm`, and bf16 against fp32, on this machine's CPU."""
    with tempfile.TemporaryDirectory() as folder:
        config = StudyConfig(
            WorkloadRef("lm", {"size": "tiny"}), "cpu", "4GiB", global_batch_size=16, study=f"{folder}/lm-tiny"
        )
        bridge = Bridge(EngineClient(), Collector())
        app, screen = app_for(bridge, config)
        state = screen.tune.state
        try:
            async with app.run_test(size=(120, 40)) as pilot:
                await until(pilot, lambda: state.b is not None)
                await pilot.press("u")
                await until(pilot, lambda: state.task == "search")
                await until(pilot, lambda: state.task is None)
                await pilot.press("down", "left", "a")
                await until(pilot, lambda: state.comparison is not None and state.comparison.over)
                await until(pilot, lambda: state.task is None)
                await pilot.press("tab")
                await pilot.pause(0.5)
                save(app, "tune.svg")
        finally:
            bridge.close()


def save(app: GputuneApp, name: str) -> None:
    """Write the picture."""
    path = FOLDER / name
    path.write_text(app.export_screenshot(title="gputune-tui"), encoding="utf-8")
    sys.stderr.write(f"{path}\n")


PICTURES = {"node": node_picture, "tune": tune_picture}


def main() -> None:
    """Make one picture, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PICTURES)
    only = parser.parse_args().only
    for name, picture in PICTURES.items():
        if only in (None, name):
            asyncio.run(picture())


if __name__ == "__main__":
    main()
