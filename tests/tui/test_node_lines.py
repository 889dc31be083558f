"""What the node is and how fresh its numbers are, in words."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from gputune_tui.tui import node_lines
from tests.tui import nodes
from tests.tui.hostile import texts


def test_the_header_says_what_the_node_is_and_how_old_its_numbers_are() -> None:
    assert node_lines.header(None, None, False) == ["reading the node"]
    assert node_lines.header(nodes.node(*nodes.gpus(1)), 0.5, False) == ["node", "driver 580.1", "CUDA 13.0", "live"]
    assert node_lines.header(nodes.node(), 7.2, False) == ["node", "stale 7 s"]
    assert node_lines.header(nodes.node(), 7.2, True) == ["node", "paused"]
    assert node_lines.header(nodes.simulated(), 0.0, False)[0] == "SIMULATED"
    assert node_lines.header(nodes.node(), None, False)[-1] == "no numbers yet"


@settings(max_examples=60)
@given(text=texts, width=st.integers(1, 250))
def test_any_problem_is_told_in_any_width(text: str, width: int) -> None:
    lines = node_lines.problem_lines(nodes.node(problem=text), width)
    assert lines
    assert all(cell_len(line[0][0]) <= max(2, width) for line in lines)
    assert node_lines.problem_lines(nodes.node(), width) == []
