"""Shell scripts in the sampling process's place, and time that a test moves."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from gputune_tui.domain.plain import to_plain
from gputune_tui.domain.telemetry import SamplerSettings


def order(**settings: object) -> dict[str, object]:
    """An order as it arrives, with defaults where nothing is given."""
    return {**to_plain(SamplerSettings()), **settings}


class Clock:
    """Time that the test moves; every look takes a millisecond."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


class Script:
    """A shell script in the sampler's place, another for each of its lives; the last one repeats."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.orders = folder / "orders"
        self._lives = folder / "lives"

    def lives(self, *bodies: str) -> tuple[str, ...]:
        """The command; `say FILE` prints a file, `listen` copies the orders until they end."""
        for number, body in enumerate(bodies, 1):
            (self._folder / f"life{number}").write_text(body)
        head = (
            f"cd {shlex.quote(str(self._folder))}; echo x >> lives; n=$(wc -l < lives); "
            f"[ $n -gt {len(bodies)} ] && n={len(bodies)}; "
            "say() { cat $1; }; listen() { while read -r line; do echo $line >> orders; done; }; . ./life$n"
        )
        return ("/bin/sh", "-c", head)

    def file(self, name: str, content: str | bytes) -> str:
        """Write a file beside the script."""
        data = content.encode() if isinstance(content, str) else content
        (self._folder / name).write_bytes(data)
        return name

    def lived(self) -> int:
        return len(self._lives.read_text().split()) if self._lives.exists() else 0

    def heard(self) -> list[dict[str, object]]:
        text = self.orders.read_text() if self.orders.exists() else ""
        return [json.loads(part) for part in text.splitlines() if part.endswith("}")]
