"""An "interpreter" that plays a trial by script: real processes and pipes, and no torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gputune_tui.domain.study import WorkloadRef
from gputune_tui.engine.commands import StudyConfig

SOURCE = """#!{python} -S
import json, os, subprocess, sys, time
job = json.load(open(os.environ["GPUTUNE_JOB"]))
options = job["workload"]["options"]
def send(event, **fields):
    data = json.dumps({{"v": 1, "event": event, **fields}}).encode() + b"\\n"
    while data:
        data = data[os.write(int(os.environ["GPUTUNE_EVENTS_FD"]), data):]
def hold():
    while os.path.exists(options.get("hold", "")):
        time.sleep(0.01)
def block():
    steps = int(options.get("steps", 2))
    slowness = float(options.get("slow_%s" % job["settings"]["num_workers"], 1))
    if os.path.exists(options.get("slow_file", "")):
        slowness *= float(open(options["slow_file"]).read())
    timed = {{"samples": 8 * steps, "steps": steps, "elapsed_s": 0.5 * slowness}}
    if os.path.exists(options.get("disturbed", "")):
        timed.update(others_cpu_fraction=0.5, idle_cpu_fraction=0.0)
    send("block", block=timed, step_times_s=[0.125] * steps, planned=4)
if job["kind"] == "inspect":
    send("phase", name="import")
    while os.path.exists(options.get("hold_inspect", "")):
        time.sleep(0.01)
    if "fault" in options:
        send("error", reason="CRASH", message=options["fault"], in_workload=True)
        sys.exit(1)
    send("inspected", python="3", torch="2", cuda=None, device_name=None, device_uuid=None, content_hash="x",
         class_name="Workload", global_batch_size=8)
    send("done")
    sys.exit(0)
send("phase", name="measure")
if os.path.exists(options.get("crash_%s" % job["settings"]["num_workers"], "")):
    send("error", reason="CRASH", message="it crashed", in_workload=True)
    sys.exit(1)
if "child" in options:
    # Grandchildren in a session of their own, as loader workers of a hostile library may be.
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
if "GPUTUNE_CONTROL_FD" in os.environ:
    send("phase", name="ready")
    for line in open(int(os.environ["GPUTUNE_CONTROL_FD"])):
        if json.loads(line)["order"] == "finish":
            break
        block()
        hold()
else:
    for _ in range(4):
        block()
        hold()
host_mib = int(options.get("host_mib_%s" % job["settings"]["num_workers"], 1))
send("memory", peaks={{"device_peak_bytes": 1 << 20, "host_peak_bytes": host_mib << 20}})
send("done")
"""


def fake_interpreter(folder: Path) -> Path:
    """Write it to `folder`."""
    path = folder / "fake-python"
    if not path.exists():
        path.write_text(SOURCE.format(python=sys.executable))
        path.chmod(0o755)
    return path


def fake_study(folder: Path, name: str = "study", **options: Any) -> StudyConfig:
    """A study whose trials the fake interpreter plays.

    Options: `hold=PATH` waits in the middle of a trial while that file is there, `hold_inspect` in the inspection;
    `disturbed=PATH` has others on the CPUs while that file is there; `steps` per block; `slow_N`, how many times as
    long a block takes with N workers, and `slow_file=PATH` how many times with any, by what is in that file;
    `crash_N=PATH` ends trials with N workers while that file is there; `host_mib_N`, the MiB of the host that N workers
    tell to have taken; `fault`, the message of a workload that cannot be imported; `child`, to leave a child behind.
    """
    return StudyConfig(
        workload=WorkloadRef("fake", {key: str(value) for key, value in options.items()}),
        device="cpu",
        budget="1GiB",
        study=str(folder / name),
        python=str(fake_interpreter(folder)),
    )
