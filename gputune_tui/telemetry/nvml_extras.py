"""What is read of a GPU less often: PCIe rates and MIG slices, modes and errors, and what only a close look needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gputune_tui.domain.telemetry import MigSnapshot
from gputune_tui.telemetry import nvml_calls as calls
from gputune_tui.telemetry.nvml_calls import Answers
from gputune_tui.telemetry.nvml_words import compute_mode_word
from gputune_tui.telemetry.rates import Rates

MODES_PERIOD_S = 30.0
"""Modes and error counts change by an administrator's hand, or hardly ever."""
KEPT_S = 6.0
"""A rate is shown for so long without a new one, as while a block is timed; then it is unknown."""
KIB = 1024


class Extras:
    """Fields of `DeviceSnapshot` by name, each as old as its tier allows."""

    def __init__(self, answers: Answers, clock: Callable[[], float] = time.monotonic) -> None:
        self._answers = answers
        self._clock = clock
        self._pcie, self._nvlink = Rates(), Rates()
        self._static: dict[str, Any] | None = None
        self._regular: dict[str, Any] = {}
        self._regular_s = 0.0
        self._modes: dict[str, Any] = {}
        self._modes_s: float | None = None
        self._expanded: dict[str, Any] = {}
        self._slices: list[tuple[MigSnapshot, Answers]] = []
        self._mig: tuple[MigSnapshot, ...] = ()

    def values(self, regular: bool, expanded: bool) -> Mapping[str, Any]:
        """All that is known; asks what is due.

        Args:
            regular: the tier of two seconds is due.
            expanded: somebody looks at this GPU; without that what only then is read is unknown.
        """
        now = self._clock()
        if self._static is None:
            self._static = self._read_static()
        if regular:
            if self._modes_s is None or now - self._modes_s >= MODES_PERIOD_S:
                self._read_modes()
                self._modes_s = now
            self._read_regular(now)
            if expanded:
                self._read_expanded(now)
        if now - self._regular_s > KEPT_S:
            self._regular, self._expanded = {}, {}
        shown = self._expanded if expanded else {}
        return {**self._static, **self._modes, "mig": self._mig, **self._regular, **shown}

    @property
    def is_cut(self) -> bool:
        """Whether MIG is on."""
        return bool(self._modes.get("mig_enabled"))

    def forget(self) -> None:
        """The GPU was away: counters may have begun anew, and nothing is known of it now."""
        self._pcie.forget()
        self._nvlink.forget()
        self._regular, self._modes, self._expanded = {}, {}, {}
        self._modes_s, self._slices, self._mig = None, [], ()

    def _read_static(self) -> dict[str, Any]:
        ask = self._answers.ask
        pci, slowdown = ask(calls.PCI), ask(calls.SLOWDOWN)
        return {
            "pci_bus": None if pci is None else calls.as_text(pci.busId),
            "slowdown_temperature_c": None if slowdown is None else float(slowdown),
        }

    def _read_regular(self, now: float) -> None:
        # As the GPU sees it: it receives what goes to it.
        bytes_ = self._answers.fields((calls.PCIE_TX_BYTES, calls.PCIE_RX_BYTES))
        rates = self._pcie.take({"tx": bytes_.get(calls.PCIE_TX_BYTES), "rx": bytes_.get(calls.PCIE_RX_BYTES)}, now)
        self._regular = {"pcie_tx_bytes_per_s": rates.get("tx"), "pcie_rx_bytes_per_s": rates.get("rx")}
        self._regular_s = now
        self._mig = tuple(_with_memory(instance, answers) for instance, answers in self._slices)

    def _read_expanded(self, now: float) -> None:
        ask = self._answers.ask
        fan, energy_mj = ask(calls.FAN), ask(calls.ENERGY)
        encoder, decoder = ask(calls.ENCODER), ask(calls.DECODER)
        links = self._answers.fields(
            (calls.NVLINK_COUNT, (calls.NVLINK_TX_KIB, calls.ALL_LINKS), (calls.NVLINK_RX_KIB, calls.ALL_LINKS))
        )
        rates = self._nvlink.take({"tx": links.get(calls.NVLINK_TX_KIB), "rx": links.get(calls.NVLINK_RX_KIB)}, now)
        self._expanded = {
            "pcie_generation": ask(calls.PCIE_GENERATION),
            "pcie_width": ask(calls.PCIE_WIDTH),
            "pcie_max_generation": ask(calls.PCIE_MAX_GENERATION),
            "pcie_max_width": ask(calls.PCIE_MAX_WIDTH),
            "fan_fraction": None if fan is None else fan / 100,
            "encoder_fraction": None if encoder is None else encoder[0] / 100,
            "decoder_fraction": None if decoder is None else decoder[0] / 100,
            "nvlink_links": links.get(calls.NVLINK_COUNT),
            "nvlink_tx_bytes_per_s": _scaled(rates.get("tx"), KIB),
            "nvlink_rx_bytes_per_s": _scaled(rates.get("rx"), KIB),
            "energy_j": _scaled(energy_mj, 1e-3),
        }

    def _read_modes(self) -> None:
        ask = self._answers.ask
        mig, ecc = ask(calls.MIG_MODE), ask(calls.ECC_MODE)
        persistence, compute = ask(calls.PERSISTENCE), ask(calls.COMPUTE_MODE)
        was_cut = self._modes.get("mig_enabled")
        self._modes = {
            "mig_enabled": None if mig is None else bool(mig[0]),
            "ecc_enabled": None if ecc is None else bool(ecc[0]),
            "ecc_corrected": ask(calls.ECC_CORRECTED) if ecc is not None and ecc[0] else None,
            "ecc_uncorrected": ask(calls.ECC_UNCORRECTED) if ecc is not None and ecc[0] else None,
            "persistence": None if persistence is None else bool(persistence),
            "compute_mode": None if compute is None else compute_mode_word(int(compute)),
        }
        if was_cut is not None and was_cut != self._modes["mig_enabled"]:
            self._answers.reconsider()
        self._slices = self._read_slices() if self._modes["mig_enabled"] else []

    def _read_slices(self) -> list[tuple[MigSnapshot, Answers]]:
        """Instances may stand at any places up to the GPU's count."""
        nvml, found = self._answers.nvml, []
        for place in range(int(self._answers.ask(calls.MIG_COUNT) or 0)):
            try:
                handle = getattr(nvml, calls.MIG_HANDLE.name)(self._answers.handle, place)
            except nvml.NVMLError:
                continue  # an empty place
            answers = Answers(nvml, handle)
            instance = MigSnapshot(
                gpu_instance=answers.ask(calls.GPU_INSTANCE),
                compute_instance=answers.ask(calls.COMPUTE_INSTANCE),
                uuid=answers.ask(calls.UUID),
                name=answers.ask(calls.NAME),
                memory_used_bytes=None,
                memory_total_bytes=None,
            )
            found.append((instance, answers))
        return found


def _with_memory(instance: MigSnapshot, answers: Answers) -> MigSnapshot:
    memory = answers.ask(calls.MEMORY)
    if memory is None or not memory.total:
        return instance
    return MigSnapshot(
        instance.gpu_instance,
        instance.compute_instance,
        instance.uuid,
        instance.name,
        int(memory.used),
        int(memory.total),
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
