"""The right to measure on the device of a study: who else is there, who has to wait, and who was there meanwhile."""

from __future__ import annotations

from collections.abc import Generator

from gputune_tui.domain.conditions import Neighbour
from gputune_tui.engine.device_lock import RETRY_S, DeviceLock, Holder
from gputune_tui.engine.device_watch import DeviceWatch, GpuNode
from gputune_tui.engine.events import DeviceInUse, EngineEvent, Problem
from gputune_tui.engine.node import ChosenDevice
from gputune_tui.errors import EnvironmentProblem
from gputune_tui.ranking.taints import neighbour_text
from gputune_tui.trial.keeper import descendants
from gputune_tui.trial.memory_mark import resident_bytes


class DevicePlace:
    """One device. Take it for a launch and give it back; a launch that shares it records with whom."""

    def __init__(self, device: ChosenDevice, share: bool, node: GpuNode | None = None) -> None:
        uuid = device.gpu.uuid if device.gpu else None
        self.share = share
        """Measure although somebody else is there: `--share`, or a confirmation that names them."""
        self.lock = DeviceLock(uuid or "cpu", device.label)
        self.node = node or (GpuNode(uuid) if uuid else None)
        self._label = device.label
        self._met: dict[Holder, Neighbour] = {}
        """Other instances that have measured on the device since it was taken."""

    def admit(self) -> Generator[EngineEvent | None, None, None]:
        """At the start of a command, before anything is stored for it.

        Raises:
            EnvironmentProblem: somebody else computes on the GPU, and nobody has said to share it.
        """
        if self.node is None or self.share:
            return
        yield from self.node.refresh()
        if others := self.node.others:
            yield DeviceInUse(self._label, others)
            raise EnvironmentProblem(in_use_text(self._label, others) + "; --share measures beside it")

    def take(self) -> Generator[EngineEvent | None, None, None]:
        """Wait until nobody else measures or computes on the device; with `share` for nobody.

        A wait that is broken off gives back what it has got so far.
        """
        try:
            yield from self._take()
        except BaseException:
            self.release()
            raise

    def _take(self) -> Generator[EngineEvent | None, None, None]:
        self._met = {}
        if self.share:
            if holder := self.lock.share():
                self._met[holder] = _neighbour(holder)
        else:
            yield from self.lock.wait()
        if self.node is None:
            return
        yield from self.node.refresh()
        if not self.share and (others := self.node.others):
            # They came between two trials of a command: it goes on by itself once they are gone.
            yield Problem(
                in_use_text(self._label, others)
                + "; this trial starts when it is gone (started with --share this one would not wait)"
            )
            while self.node.others and not self.share:
                self.node.wait(RETRY_S)
                self.node.poll()
                yield None

    def release(self) -> None:
        """Give it back."""
        self._measuring()
        if self.node is not None:
            self.node.set_quiet(False)
        self.lock.release()

    def watch(self) -> DeviceWatch:
        """For one launch, while the device is taken."""
        return DeviceWatch(self.node, self._measuring)

    def close(self) -> None:
        """Stop looking at it."""
        self.lock.release()
        if self.node is not None:
            self.node.close()

    def _measuring(self) -> tuple[Neighbour, ...]:
        for holder in self.lock.sharers():
            if holder not in self._met:
                self._met[holder] = _neighbour(holder)
        return tuple(self._met.values())


def in_use_text(device: str, others: tuple[Neighbour, ...]) -> str:
    """In words: who, whose, how much memory."""
    return f"somebody else computes on {device}: " + "; ".join(map(neighbour_text, others))


def _neighbour(holder: Holder) -> Neighbour:
    """With the memory of its trials, as far as it can be seen: shared pages count for each process."""
    sizes = [] if holder.pid is None else [resident_bytes(pid) for pid in (holder.pid, *descendants(holder.pid))]
    known = [size for size in sizes if size is not None]
    return Neighbour(holder.pid, holder.user, sum(known) if known else None, "gputune-tui")
