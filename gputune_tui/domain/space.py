"""SearchSpace: which values each knob may take, and the distinct settings that follow for one global batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gputune_tui.domain.knobs import KnobValue, knob_named, read_value, value_text
from gputune_tui.domain.settings import TrainSettings, settings_from_dict
from gputune_tui.errors import UsageError

BATCH_KNOBS = ("micro_batch_size", "accumulation_steps")


@dataclass(frozen=True)
class Cells:
    """The distinct settings of a space, in the order of its values."""

    settings: tuple[TrainSettings, ...]
    """Canonical and distinct; the baseline's cell, or the nearest to it, is named by `reference`."""
    reference: TrainSettings
    """The cell that guard, ratios and evidence compare with: the baseline, or the cell that differs least from it."""
    dropped: int
    """Combinations whose micro-batch times accumulation is not the global batch."""
    collapsed: int
    """Combinations that cannot differ from another one and are therefore no trial of their own."""


@dataclass(frozen=True)
class SearchSpace:
    """Values per knob; knobs that are not named stay at the baseline."""

    values: Mapping[str, tuple[KnobValue, ...]]

    @staticmethod
    def parse(text: str) -> SearchSpace:
        """Read `K=V1,V2;K=V1,...`.

        Raises:
            UsageError: an unknown knob or value, a knob without values or named twice.
        """
        values: dict[str, tuple[KnobValue, ...]] = {}
        for part in filter(None, (p.strip() for p in text.split(";"))):
            name, equals, rest = part.partition("=")
            name = name.strip()
            knob_named(name)
            texts = [v.strip() for v in rest.split(",") if v.strip()]
            if not equals or not texts:
                raise UsageError(f"knob {name!r} has no values; write {name}=V1,V2 and separate knobs by ';'")
            if name in values:
                raise UsageError(f"knob {name!r} is given twice in the search space")
            values[name] = tuple(dict.fromkeys(read_value(name, text) for text in texts))
        if not values:
            raise UsageError("the search space is empty; write for example precision=fp32,bf16;micro_batch_size=4,8")
        return SearchSpace(values)

    def text(self) -> str:
        """The text that `parse` reads back."""
        return ";".join(f"{name}={','.join(map(value_text, vs))}" for name, vs in self.values.items())

    def cells(self, global_batch_size: int, baseline: Mapping[str, KnobValue], device_kind: str) -> Cells:
        """Enumerate the distinct settings whose product is exactly the global batch.

        Args:
            global_batch_size: samples of one optimizer step, constant in a study.
            baseline: knobs that `--baseline` changes from the table's baseline.
            device_kind: "cpu" or "cuda".

        Raises:
            UsageError: no combination divides the global batch, or the batch knobs contradict each other.
        """
        names = list(self.values)
        found: dict[TrainSettings, None] = {}
        dropped = collapsed = 0
        for combination in itertools.product(*self.values.values()):
            chosen = dict(zip(names, combination, strict=True))
            settings = resolve(chosen, baseline, global_batch_size, device_kind)
            if settings is None:
                dropped += 1
            elif settings in found:
                collapsed += 1
            else:
                found[settings] = None
        if not found:
            raise UsageError(self._no_cell(global_batch_size))
        reference = nearest_to_baseline(found, baseline, global_batch_size, device_kind)
        return Cells(tuple(found), reference, dropped, collapsed)

    def _no_cell(self, global_batch_size: int) -> str:
        given = "; ".join(f"{n}={','.join(map(value_text, self.values[n]))}" for n in BATCH_KNOBS if n in self.values)
        given = given or "the baseline's micro_batch_size and accumulation_steps"
        divisors = ", ".join(map(str, divisors_of(global_batch_size)))
        return (
            f"no setting fits the global batch of {global_batch_size}: {given} gives no "
            f"micro_batch_size x accumulation_steps = {global_batch_size}; its divisors are {divisors}"
        )


def divisors_of(number: int) -> tuple[int, ...]:
    """All divisors of `number`, ascending."""
    return tuple(d for d in range(1, number + 1) if number % d == 0)


def resolve(
    chosen: Mapping[str, KnobValue], baseline: Mapping[str, KnobValue], global_batch_size: int, device_kind: str
) -> TrainSettings | None:
    """Settings of `chosen` over `baseline`, with the missing batch knob derived from the global batch.

    What is chosen wins over the baseline: a chosen accumulation fixes the micro-batch even where the baseline names
    one, and the other way round. With neither, accumulation is 1. None where the product over all ranks is not the
    global batch.
    """
    values: dict[str, KnobValue] = {"pin_memory": device_kind != "cpu", **baseline, **chosen}
    ranks = values.get("world_size", 1)
    assert isinstance(ranks, int)
    global_batch_size, rest = divmod(global_batch_size, ranks)
    if rest or not global_batch_size:
        return None
    source = next((given for given in (chosen, baseline) if any(k in given for k in BATCH_KNOBS)), {})
    micro, accumulation = source.get("micro_batch_size"), source.get("accumulation_steps")
    if not isinstance(micro, int):
        accumulation = accumulation if isinstance(accumulation, int) else 1
        micro, rest = divmod(global_batch_size, accumulation)
        if rest or micro == 0:
            return None
    elif not isinstance(accumulation, int):
        accumulation, rest = divmod(global_batch_size, micro)
        if rest or accumulation == 0:
            return None
    if micro * accumulation != global_batch_size:
        return None
    values |= {"micro_batch_size": micro, "accumulation_steps": accumulation}
    return settings_from_dict(values).canonical(device_kind)


def nearest_to_baseline(
    settings: Iterable[TrainSettings], baseline: Mapping[str, KnobValue], global_batch_size: int, device_kind: str
) -> TrainSettings:
    """The baseline itself where it is among `settings` (not empty), else the one that differs least from it."""
    origin = resolve({}, baseline, global_batch_size, device_kind)
    return min(settings, key=lambda s: (len(s.difference(origin)) if origin else 0, s.accumulation_steps))


def settings_for(
    chosen: Mapping[str, KnobValue], baseline: Mapping[str, KnobValue], global_batch_size: int, device_kind: str
) -> TrainSettings:
    """As `resolve`, for one setting that a user named.

    Raises:
        UsageError: its micro-batch and accumulation contradict the global batch.
    """
    settings = resolve(chosen, baseline, global_batch_size, device_kind)
    if settings is None:
        named = {k: v for k in BATCH_KNOBS if (v := chosen.get(k, baseline.get(k))) is not None}
        given = " and ".join(f"{k}={v}" for k, v in named.items())
        divisors = ", ".join(map(str, divisors_of(global_batch_size)))
        raise UsageError(
            f"{given} contradicts the global batch of {global_batch_size}: micro_batch_size x accumulation_steps must "
            f"be {global_batch_size}, and its divisors are {divisors}; change one of them or --global-batch"
        )
    return settings
