"""One GPU through NVML, tick after tick: unknown is None, and a lost GPU keeps its slot."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gputune_tui.domain.telemetry import DeviceSnapshot, DeviceState
from gputune_tui.telemetry import nvml_calls as calls
from gputune_tui.telemetry.nvml_calls import Answers
from gputune_tui.telemetry.nvml_extras import Extras
from gputune_tui.telemetry.nvml_processes import GpuProcess, ProcessLists
from gputune_tui.telemetry.nvml_words import GPU_IS_LOST, throttle_words

LOST_AFTER = 3
"""Readings in a row without any answer."""
RETRY_FIRST_S, RETRY_LAST_S = 5.0, 60.0
"""A lost GPU is asked again after the first, then twice as long, until the last."""


class NvmlDevice:
    """One GPU. One thread at a time."""

    def __init__(self, nvml: Any, index: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._index = index
        self._clock = clock
        self._answers = Answers(nvml)
        self._extras = Extras(self._answers, clock)
        self._lists = ProcessLists(self._answers, index)
        self._uuid: str | None = None
        self._name: str | None = None
        self._silent_reads = 0
        self._retry_s = RETRY_FIRST_S
        self._lost_until_s: float | None = None

    def read(self, regular: bool = False, expanded: bool = False) -> DeviceSnapshot:
        """The cheap numbers now, some ten microseconds on a healthy driver.

        Args:
            regular: the tier of two seconds is due as well.
            expanded: somebody looks at this GPU closely.
        """
        if self._lost_until_s is not None and self._clock() < self._lost_until_s:
            return self._without_values()
        answers = self._answers
        answers.begin()
        found = self._values(regular, expanded) if self._open() else None
        if answers.answered or not answers.errors:
            self._silent_reads, self._retry_s, self._lost_until_s = 0, RETRY_FIRST_S, None
        else:
            self._silent_reads += 1
            if GPU_IS_LOST in answers.errors or self._silent_reads >= LOST_AFTER:
                self._lose()
        return found if found is not None and self._silent_reads == 0 else self._without_values()

    def processes(self) -> tuple[GpuProcess, ...]:
        """Processes that compute or draw on it."""
        if self._answers.handle is None or self._lost_until_s is not None:
            return ()
        return self._lists.read(self._extras.is_cut)

    def _lose(self) -> None:
        self._answers.handle = None
        self._extras.forget()
        self._lost_until_s = self._clock() + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_LAST_S)

    def _open(self) -> bool:
        answers = self._answers
        if answers.handle is not None:
            return True
        try:
            # Once known it is found by UUID: another card may have taken its number.
            if self._uuid is not None:
                answers.handle = self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)
            else:
                answers.handle = self._nvml.nvmlDeviceGetHandleByIndex(self._index)
        except self._nvml.NVMLError as error:
            answers.errors.append(error.value)
            return False
        self._uuid = self._uuid or answers.ask(calls.UUID)
        self._name = self._name or answers.ask(calls.NAME)
        return True

    def _values(self, regular: bool, expanded: bool) -> DeviceSnapshot:
        ask = self._answers.ask
        utilization, memory = ask(calls.UTILIZATION), ask(calls.MEMORY)
        power_mw, limit_mw = ask(calls.POWER), ask(calls.POWER_LIMIT)
        temperature, reasons = ask(calls.TEMPERATURE), ask(calls.THROTTLE)
        util = None if utilization is None else utilization.gpu / 100
        if self._is_gone():
            return self._without_values()
        return DeviceSnapshot(
            index=self._index,
            uuid=self._uuid,
            name=self._name,
            state="live",
            util_fraction=util,
            **self._memory(memory),
            power_w=None if power_mw is None else power_mw / 1000,
            power_limit_w=None if limit_mw is None else limit_mw / 1000,
            temperature_c=None if temperature is None else float(temperature),
            sm_clock_mhz=_optional_int(ask(calls.SM_CLOCK)),
            throttle=() if reasons is None or util == 0 else throttle_words(reasons),
            memory_util_fraction=None if utilization is None else utilization.memory / 100,
            memory_clock_mhz=_optional_int(ask(calls.MEMORY_CLOCK)),
            pstate=_pstate(ask(calls.PSTATE)),
            **self._extras.values(regular, expanded),
        )

    def _is_gone(self) -> bool:
        """Whether it answered nothing so far: what is asked less often would fail as well."""
        return not self._answers.answered and bool(self._answers.errors)

    def _memory(self, memory: Any) -> Mapping[str, Any]:
        """Parts whose memory is the machine's tell nothing of it, or a total of zero: `LiveNode` fills it in."""
        is_known = memory is not None and memory.total
        return {
            "memory_used_bytes": int(memory.used) if is_known else None,
            "memory_total_bytes": int(memory.total) if is_known else None,
            "memory_reserved_bytes": _optional_int(getattr(memory, "reserved", None)) if is_known else None,
            "memory_is_unified": self._answers.refused(calls.MEMORY) or (memory is not None and not memory.total),
        }

    def _without_values(self) -> DeviceSnapshot:
        state: DeviceState = "stale" if self._lost_until_s is None else "lost"
        return no_values(self._index, state, self._uuid, self._name)


def no_values(index: int, state: DeviceState, uuid: str | None = None, name: str | None = None) -> DeviceSnapshot:
    """A GPU of which no value is known now."""
    return DeviceSnapshot(index, uuid, name, state, None, None, None, None, None, None, None, None, ())


def _optional_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _pstate(value: Any) -> int | None:
    """32 is "unknown" (nvmlPstates_t)."""
    return int(value) if value is not None and 0 <= int(value) <= 15 else None
