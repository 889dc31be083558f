"""What the program that draws loads: it starts at once, and survives the libraries of any trial."""

from __future__ import annotations

from tests.test_layers import loaded_by


def test_the_screen_loads_nothing_that_is_not_for_drawing() -> None:
    loaded = loaded_by(["gputune_tui.tui.app"])
    assert "textual" in loaded
    assert not loaded & {"torch", "torchvision", "numpy", "pynvml", "psutil", "yaml", "click"}
    own = {name.partition(".")[2] for name in loaded if name.startswith("gputune_tui.")}
    assert not own & {"trainer", "cli", "export", "store", "search"}
