"""Run a function in a forked process: limits on memory must not stay with the tests."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

import torch


def in_fork(function: Callable[[], Any]) -> Any:
    """What `function` returns (as JSON); its exception fails the caller."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            torch.set_num_threads(1)  # OpenMP's other threads are not there after a fork
            answer = json.dumps({"value": function()})
        except BaseException:  # whatever it is, the parent shows it
            answer = json.dumps({"error": traceback.format_exc()})
        os.write(writer, answer.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = json.loads(file.read() or '{"error": "it died"}')
    os.waitpid(pid, 0)
    assert "error" not in data, data["error"]
    return data["value"]
