"""Where the built-in workloads lie and what their files say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputune_tui.domain import builtin


def test_the_source_tree_has_lm() -> None:
    path = builtin.builtin_path("lm")
    assert path is not None
    assert path.name == "lm.py"
    assert builtin.summary(path)


def test_what_the_workloads_share_is_not_listed() -> None:
    assert builtin.builtin_names() == ["detection", "lm", "loader-bound", "vision"]
    for name in builtin.builtin_names():
        path = builtin.builtin_path(name)
        assert path is not None
        assert "JPEG" in builtin.summary(path) or name == "lm"


def test_package_data_wins_over_the_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gputune_tui"
    (tmp_path / "workloads").mkdir()
    package.mkdir()
    monkeypatch.setattr(builtin, "PACKAGE", package)
    assert builtin.builtin_folder() == tmp_path / "workloads"
    (package / "workloads").mkdir()
    assert builtin.builtin_folder() == package / "workloads"
    (package / "workloads" / "loader_bound.py").write_text('"""Heavy augmentation.\n\nMore."""\n')
    (package / "workloads" / "_private.py").write_text("")
    assert builtin.builtin_names() == ["loader-bound"]
    path = builtin.builtin_path("loader-bound")
    assert path is not None
    assert builtin.summary(path) == "Heavy augmentation."


@pytest.mark.parametrize("name", ["", "lm.py", "../lm", "_private", "no-such", "l m"])
def test_other_names_are_none_of_ours(name: str) -> None:
    assert builtin.builtin_path(name) is None


@pytest.mark.parametrize("source", ["", "x = (", "'not a docstring' + 1\n", "\0"])
def test_a_summary_never_fails(tmp_path: Path, source: str) -> None:
    path = tmp_path / "w.py"
    path.write_text(source)
    assert builtin.summary(path) == ""
    assert builtin.summary(tmp_path / "missing.py") == ""
