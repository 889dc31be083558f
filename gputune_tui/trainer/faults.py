"""The typed ways in which a trial cannot go on; `classify` maps them, and torch's own, to a FailureReason."""

from __future__ import annotations


class TrialFault(Exception):
    """Base: the message is one sentence for the user."""


class SettingsNotApplicable(TrialFault):
    """These settings do not apply to this workload or device; other settings may."""


class NoData(TrialFault):
    """The workload's loader or dataset gave nothing."""


class NonFinite(TrialFault):
    """The loss became NaN or infinite."""


class DeviceUnavailable(TrialFault):
    """torch cannot use the device."""


class OverBudget(TrialFault):
    """The trial would take more than its budget."""

    def __init__(self, message: str, needs_bytes: int) -> None:
        super().__init__(message)
        self.needs_bytes = needs_bytes
        """A lower bound of what it needs."""


def bytes_words(value: int) -> str:
    """Bytes for a message; the trainer may not use the program's `units`, since it runs under other interpreters."""
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"
