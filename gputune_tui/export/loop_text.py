"""The pieces of the exported training loop; what stands in braces is filled in."""

from __future__ import annotations

IMPORTS = """\
from __future__ import annotations

{modules}
from collections.abc import {abstract}
from pathlib import Path

import torch
from torch import Tensor{nn}
{checkpoint}from torch.utils.data import DataLoader, IterableDataset, RandomSampler
"""

NAMES = """
TARGET, CLASS = {target}, {class_name}
OPTIONS = {options}
DEVICE = {device}
MICRO_BATCH_SIZE = {micro_batch_size}
ACCUMULATION_STEPS = {accumulation_steps}
SEED = 0
"""

WORKLOAD = '''

def load_workload():
    """The workload's object: its class with OPTIONS, or the module itself."""
    module = import_file(Path(TARGET)) if TARGET.endswith(".py") else importlib.import_module(TARGET)
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    fitting = [c for c in own if hasattr(c, "build_model")]
    derived = [c for c in fitting if not any(c is not other and issubclass(other, c) for other in fitting)]
    named = getattr(module, CLASS or "Workload", None)
    if CLASS is None and named not in own and (derived or hasattr(module, "build_model")):
        named = derived[0] if derived else None
    return module if named is None else named(**OPTIONS)


def import_file(path):
    """The file as a module; where it imports relatively, of the packages around it."""
    root = path.parent
    if re.search(r"^\\s*from\\s+\\.", path.read_text(encoding="utf-8"), re.MULTILINE):
        while (root / "__init__.py").is_file():
            root = root.parent
    package = sys.modules["_workload"] = types.ModuleType("_workload")
    package.__path__ = [str(root)]
    sys.path += [str(path.parent), str(root)]
    parent = ".".join(("_workload", *path.parent.relative_to(root).parts))
    importlib.import_module(parent)
    name = f"{parent}.{path.stem.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def optimizer_of(workload, parameters):
    """The workload's own optimizer, else AdamW."""
    build = getattr(workload, "build_optimizer", torch.optim.AdamW)
    return build(parameters)


def loss_of(workload, model, batch):
    """The loss, and how many items it is the mean of where the workload says so."""
    found, items = workload.loss(model, batch), None
    if isinstance(found, Tensor):
        return found, 1
    if hasattr(found, "_asdict") and hasattr(found, "loss"):
        found = found._asdict()
    if isinstance(found, Mapping):
        loss, items = found["loss"], [found[key] for key in ITEM_KEYS if key in found]
    elif hasattr(found, "loss"):
        loss, items = found.loss, [getattr(found, key, None) for key in ITEM_KEYS]
    else:
        loss, items = found[0], list(found[1:2]) if len(found) == 2 else []
    return loss, next(filter(is_count, items), 1)


ITEM_KEYS = ("item_count", "items", "count")


def is_count(value):
    """True for a whole number or a tensor that holds one."""
    if isinstance(value, Tensor):
        return value.dim() == 0 and not value.is_floating_point() and value.dtype != torch.bool
    return isinstance(value, int) and not isinstance(value, bool)


def moved(batch):
    """The batch on the device, its containers kept."""
    if isinstance(batch, Tensor):
        {move}
    if hasattr(batch, "to"):
        return batch.to(DEVICE)
    if isinstance(batch, Mapping):
        found = {key: moved(value) for key, value in batch.items()}
        return found if type(batch) is dict else type(batch)(found)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(moved, batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map(moved, batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = [field.name for field in dataclasses.fields(batch)]
        return dataclasses.replace(batch, **{name: moved(getattr(batch, name)) for name in fields})
    return batch
'''

MOVE = "return batch.to(DEVICE, non_blocking={non_blocking})"
MOVE_CHANNELS_LAST = """\
is_image = batch.dim() == 4 and batch.is_floating_point()
        memory_format = torch.channels_last if is_image else torch.preserve_format
        return batch.to(DEVICE, non_blocking={non_blocking}, memory_format=memory_format)"""

BLOCKS = '''

def blocks_of(workload, model):
    """The model's repeated blocks: those that the workload names, else found as below."""
    named = workload.checkpoint_blocks(model) if hasattr(workload, "checkpoint_blocks") else None
    return find_blocks(model) if named is None else list(named)


class SettingsNotApplicable(ValueError):
    """The model has no blocks that can be recomputed so."""
'''

RECOMPUTED = '''

def recomputed(function, modules):
    """Keep the inputs of a function of these modules alone, and run it again in the backward pass."""

    @functools.wraps(function)
    def run(*args, **kwargs):
        if not torch.is_grad_enabled():
            return function(*args, **kwargs)
        return checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    def contexts():
        return {contexts}

    return run


@contextlib.contextmanager
def statistics_kept(modules{more}):
    """The second run of a batch must not count in running statistics."""
    norms = {{m for module in modules for m in module.modules() if isinstance(m, _NormBase)}}
    kept = [(b, b.clone()) for norm in norms for b in norm.buffers()]
    try:
        {within}
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
'''

PLAIN_CONTEXTS = {
    "contexts": "contextlib.nullcontext(), statistics_kept(modules)",
    "more": "",
    "within": "yield",
}
SELECTIVE_CONTEXTS = {
    "contexts": "kept_results(modules)",
    "more": ", again",
    "within": "with again:\n            yield",
}

SELECTIVE = '''

NAMES_KEPT = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
)
KEPT = {getattr(torch.ops.aten, name).default for name in NAMES_KEPT if hasattr(torch.ops.aten, name)}


def kept_results(modules):
    """Results that are dear to compute are kept, the rest is computed again."""
    first, again = create_selective_checkpoint_contexts(policy)
    return first, statistics_kept(modules, again)


def policy(context, operator, *args, **kwargs):
    """Attention with dropout is not kept: it would draw no random numbers the second time."""
    names = [argument.name for argument in operator._schema.arguments]
    dropout = 0.0
    if "dropout_p" in names:
        place = names.index("dropout_p")
        dropout = args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)
    is_kept = operator in KEPT and not dropout
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE
'''

BLOCK_BY_BLOCK = '''

def recompute(blocks):
    """{what}"""
    for block in blocks[::{number}]:
        if not works_in_place(block):
            block.forward = recomputed(block.forward, [block])
'''

SEGMENTS = '''

def recompute(blocks):
    """Compute the blocks again in the backward pass in runs of them; their inputs alone are kept."""
    for segment in split_into_segments(blocks, {number}):
        forwards = [block.forward for block in segment]
        segment[0].forward = recomputed(functools.partial(run_all, forwards), segment)
        for block in segment[1:]:  # the first has run them
            block.forward = passed_on


def run_all(forwards, x, *rest, **named):
    for forward in forwards:
        x = forward(x, *rest, **named)
    return x


def passed_on(x, *rest, **named):
    return x
'''

LOADER = '''

def loader_of(workload):
    """Batches of MICRO_BATCH_SIZE samples."""
    arguments = {{{arguments}}}
    arguments["generator"] = torch.Generator().manual_seed(SEED)
    for name in ("collate_fn", "worker_init_fn"):
        if hasattr(workload, name):
            arguments[name] = getattr(workload, name)
    if hasattr(workload, "build_loader"):
        return workload.build_loader(**accepted(workload.build_loader, arguments))
    dataset = workload.build_dataset()
    if not isinstance(dataset, IterableDataset):
        arguments["sampler"] = RandomSampler(dataset, generator=torch.Generator().manual_seed(SEED))
    return DataLoader(dataset, **arguments)


def accepted(function, arguments):
    """Those arguments that the workload's own function takes."""
    parameters = inspect.signature(function).parameters
    taken = {{k: v for k, v in {{**arguments, "shuffle": True, "drop_last": False}}.items() if k in parameters}}
    return arguments | taken if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else taken


def batches_of(loader):
    """The batches of one epoch, without end."""
    while True:
        batches = iter(loader)
        first = next(batches)
        yield itertools.chain([first], batches)
'''

MAIN_HEAD = '''

def main(steps):
    """Train for so many optimizer steps."""
{prepare}
    workload = load_workload()
    model = workload.build_model().to(DEVICE)
    model.train()
{model}
    loader = loader_of(workload)
'''

PLAIN_STEPS = """\
    for batch in itertools.islice(itertools.chain.from_iterable(batches_of(loader)), steps):
        optimizer.zero_grad(set_to_none=True)
        with precision:
            loss, _ = loss_of(workload, model, moved(batch))
        {backward}
{update}
"""

ACCUMULATED_STEPS = """\
    for window in itertools.islice(windows_of(loader), steps):
        optimizer.zero_grad(set_to_none=True)
        planned, items = None, 0
        for batch in window:
            with precision:
                loss, count = loss_of(workload, model, moved(batch))
            if not isinstance(count, Tensor) and count < 1:  # a mean over nothing
                continue
            # The step is that of one large batch: each loss counts by its items.
            if planned is None:
                planned = (count.clamp(min=1) if isinstance(count, Tensor) else count) * ACCUMULATION_STEPS
            items = items + count
            loss = loss * (count / planned)
            {backward}
        if isinstance(items, Tensor) or items != planned:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(planned / items)
{update}
"""

WINDOWS = '''

def windows_of(loader):
    """The batches of one optimizer step after the other; the last ones of an epoch may be fewer."""
    for epoch in batches_of(loader):
        while window := list(itertools.islice(epoch, ACCUMULATION_STEPS)):
            yield window
'''

FOOT = """\
    print(f"{steps} steps, last loss {loss.item():.6g}")
    return model


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
"""
