"""Tell what a workload and its interpreter are, without building the model."""

from __future__ import annotations

import platform

import torch

from gputune_tui.domain.job import Job
from gputune_tui.domain.protocol import Inspected
from gputune_tui.domain.template import hash_command
from gputune_tui.trainer.device import open_device
from gputune_tui.trainer.workload import load_workload


def inspect_workload(job: Job) -> Inspected:
    """Import the workload and describe it and the device.

    Raises:
        WorkloadFault: it cannot be imported.
        DeviceUnavailable: torch cannot use the device.
    """
    device = open_device(job.device, job.threads)
    if job.workload.command:
        content_hash, class_name, batch = hash_command(job.workload.command), "", None
    else:
        workload = load_workload(job.workload)
        content_hash, class_name, batch = workload.content_hash, workload.class_name, workload.global_batch_size
        workload.close()
    return Inspected(
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
        device_name=device.name,
        device_uuid=device.uuid,
        content_hash=content_hash,
        class_name=class_name,
        global_batch_size=batch,
    )
