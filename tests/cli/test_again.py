"""Rows that were disturbed are told with the option that measures them again, over trials that are played by script."""

from __future__ import annotations

from pathlib import Path

from tests.engine.fake_interpreter import fake_interpreter

from .run_cli import document, gputune


def test_a_disturbed_row_is_told_and_measured_again(tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    command: list[str | Path] = ["tune", "fake", "--python", fake_interpreter(tmp_path), "--device", "cpu"]
    command += ["--budget", "1GiB"]
    command += ["-D", f"disturbed={busy}", "--space", "num_workers=0", "--study", tmp_path / "study"]
    busy.touch()
    disturbed = gputune(*command)
    assert disturbed.returncode == 0, disturbed.stderr
    assert "other processes used the CPU in 12 of 12 blocks" in disturbed.stdout
    assert "the same command with --again 1 measures again" in disturbed.stderr
    unknown = gputune(*command, "--again", "7")
    assert unknown.returncode == 2
    assert "there is no trial 7 to measure again" in unknown.stderr
    busy.unlink()
    for which in ("1", "disturbed"):
        done = gputune(*command, "--again", which, "--json", "-")
        assert done.returncode == 0, done.stderr
        assert "measures again" not in done.stderr
        [trial] = document(done)["trials"]
        assert (trial["id"], trial["samples_per_s"]["launches"], trial["flags"]) == (1, 3, [])
        assert [entry["disturbed_blocks"] for entry in trial["conditions"]] == [0, 0, 0]
