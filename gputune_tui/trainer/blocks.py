"""The repeated blocks of a model: what activation checkpointing is applied to when the workload names none."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from torch import nn

from gputune_tui.trainer.faults import SettingsNotApplicable

PLAIN_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
INNER_SHARE = 0.75
"""Of nested classes that both repeat (stages of blocks) the inner is taken when it repeats more often in a row and
holds this share of the outer's parameters; attention heads and the like hold less."""

Wanted = Callable[[nn.Module], bool]


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a model, in the order of definition.

    First of these that there are: composite modules of one class side by side in a Sequential, a list or another module
    (GPT blocks, encoder layers, the blocks of all ResNet stages); the children of a model that is a flat nn.Sequential;
    repeated Sequentials; the children of the longest Sequential; repeated layers in a list.

    Raises:
        SettingsNotApplicable: nothing repeats.
    """
    siblings = [list(m.children()) for m in model.modules()]
    lists = [list(m.children()) for m in model.modules() if isinstance(m, PLAIN_CONTAINERS)]
    flat = [list(m.children()) for m in model.modules() if isinstance(m, nn.Sequential) and len(m) > 1]
    found = _repeated(siblings, _is_composite)
    if not found and isinstance(model, nn.Sequential) and len(model) > 1:
        found = list(model.children())
    found = found or _repeated(lists, lambda m: isinstance(m, nn.Sequential))
    found = found or max(flat, key=len, default=[])
    found = found or _repeated(lists, lambda m: True)
    if not found:
        raise SettingsNotApplicable(
            "no repeated blocks were found to recompute; give the workload checkpoint_blocks(model) that returns them"
        )
    position = {module: index for index, module in enumerate(model.modules())}
    return sorted(dict.fromkeys(found), key=position.__getitem__)


def works_in_place(block: nn.Module) -> bool:
    """True for a layer that overwrites its input, such as ReLU(inplace=True); alone it keeps nothing to recompute."""
    return bool(getattr(block, "inplace", False)) and next(block.children(), None) is None


def split_into_segments(blocks: Sequence[nn.Module], parts: int) -> list[list[nn.Module]]:
    """`parts` runs of consecutive blocks whose lengths differ by about one; none begins with an in-place layer.

    Raises:
        SettingsNotApplicable: there are fewer blocks than parts.
    """
    units: list[list[nn.Module]] = []
    for block in blocks:
        if units and works_in_place(block):
            units[-1].append(block)
        else:
            units.append([block])
    if parts > len(units):
        raise SettingsNotApplicable(
            f"segments:{parts} needs at least {parts} blocks to recompute; the model has {len(units)}"
        )
    size, longer = divmod(len(units), parts)
    segments, start = [], 0
    for index in range(parts):
        end = start + size + (index < longer)
        segments.append([block for unit in units[start:end] for block in unit])
        start = end
    return segments


def _is_composite(module: nn.Module) -> bool:
    """A module with parts and a forward of its own."""
    callable_itself = type(module).forward is not nn.Module.forward
    return type(module) not in PLAIN_CONTAINERS and callable_itself and next(module.children(), None) is not None


def _repeated(groups: Iterable[Sequence[nn.Module]], wanted: Wanted) -> list[nn.Module]:
    """All members of the classes of which one group has several; of nested ones the outer, see INNER_SHARE."""
    members: dict[type, dict[nn.Module, None]] = defaultdict(dict)
    most: Counter[type] = Counter()
    for group in groups:
        fitting = [m for m in group if wanted(m)]
        for cls, count in Counter(map(type, fitting)).items():
            most[cls] = max(most[cls], count)
        for module in fitting:
            members[type(module)][module] = None
    classes = [cls for cls, count in most.items() if count > 1]
    kept = [cls for cls in classes if not any(_better_inside(cls, other, members, most) for other in classes)]
    found = [module for cls in kept for module in members[cls]]
    nested = {inner for module in found for inner in module.modules() if inner is not module}
    return [module for module in found if module not in nested]


def _better_inside(outer: type, inner: type, members: dict[type, dict[nn.Module, None]], most: Counter[type]) -> bool:
    if outer is inner or most[inner] <= most[outer]:
        return False
    contained = {m for module in members[outer] for m in module.modules()} & set(members[inner])
    return _parameter_count(contained) >= INNER_SHARE * max(1, _parameter_count(members[outer]))


def _parameter_count(modules: Iterable[nn.Module]) -> int:
    return sum({p: p.numel() for module in modules for p in module.parameters()}.values())
