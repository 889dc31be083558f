"""Which blocks are recomputed, and that recomputing them is exact or refused in words."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy

from gputune_tui.trainer.blocks import find_blocks, split_into_segments
from gputune_tui.trainer.checkpointing import _selective_policy, apply_checkpointing
from gputune_tui.trainer.faults import SettingsNotApplicable
from tests.trainer.test_same_training import Block, Stack, assert_equal_gradients, flat, gradients

SPECS = ["full", "every:2", "every:3", "segments:1", "segments:2", "selective"]


def assert_same_as_plain(model: nn.Module, spec: str, call: Callable[[nn.Module], Tensor]) -> None:
    """Outputs, gradients, buffers and random state are those of the model without checkpointing."""
    again = copy.deepcopy(model)
    apply_checkpointing(again, spec, None)
    states, outputs = [], []
    for each in (model, again):
        torch.manual_seed(3)
        for _ in range(2):
            outputs.append(call(each))
            outputs[-1].float().pow(2).mean().backward()
        states.append(torch.get_rng_state())
    torch.testing.assert_close(outputs[2:], outputs[:2], rtol=0, atol=0)
    assert torch.equal(*states)
    assert_equal_gradients(again, gradients(model), 1e-6)
    for (name, buffer), other in zip(again.named_buffers(), model.buffers(), strict=True):
        assert torch.equal(buffer, other), name


class Masked(nn.Module):
    """GPT-like: blocks in a list, called with a mask; embedding and head share their weights."""

    class Layer(nn.Module):
        def __init__(self, dropout: float) -> None:
            super().__init__()
            self.qkv = nn.Linear(8, 24)
            self.block = Block(dropout)
            self.dropout = dropout

        def forward(self, x: Tensor, mask: Tensor, scale: float = 1.0) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            x = x + scale * functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout)
            return self.block(functional.dropout(x, self.dropout))

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(self.Layer(dropout) for _ in range(3))
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, mask, scale=0.5)
        return self.head(x)


def images(model: nn.Module) -> Tensor:
    return model(torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32))


def tokens(model: nn.Module) -> Tensor:
    return model(torch.arange(12).reshape(2, 6) % 11)


@pytest.mark.parametrize("spec", SPECS)
def test_tied_weights_masks_and_dropout(spec: str) -> None:
    model = Masked()
    again = copy.deepcopy(model)
    assert_same_as_plain(model, spec, tokens)
    apply_checkpointing(again, spec, None)
    assert again.head.weight is again.embedding.weight
    assert len(list(again.parameters())) == len(list(model.parameters()))


@pytest.mark.parametrize("spec", SPECS)
def test_a_first_block_whose_input_needs_no_gradient_has_gradients_all_the_same(spec: str) -> None:
    model = flat()
    apply_checkpointing(model, spec, None)
    model(torch.ones(2, 8)).sum().backward()
    gradients(model)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_torchvision_models(spec: str) -> None:
    from torchvision.models import VisionTransformer, resnet18

    torch.manual_seed(0)
    resnet = resnet18(num_classes=5)
    assert Counter(type(b).__name__ for b in find_blocks(resnet)) == {"BasicBlock": 8}
    assert_same_as_plain(resnet, spec, images)
    vit = VisionTransformer(32, 16, num_layers=3, num_heads=2, hidden_dim=16, mlp_dim=32, dropout=0.1, num_classes=5)
    assert Counter(type(b).__name__ for b in find_blocks(vit)) == {"EncoderBlock": 3}
    assert_same_as_plain(vit, spec, images)


@pytest.mark.parametrize("spec", SPECS)
def test_flat_convolutions_with_layers_that_work_in_place(spec: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.3, inplace=True),
        nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 13 * 13, 5),
    )  # fmt: skip
    assert_same_as_plain(model, spec, images)


@pytest.mark.parametrize("spec", ["full", "segments:2", "selective"])
def test_the_autocast_state_is_kept(spec: str) -> None:
    model, kinds = Stack(), set[torch.dtype]()
    for block in model.blocks:
        block.first.register_forward_hook(lambda module, args, result: kinds.add(result.dtype))
    apply_checkpointing(model, spec, None)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(torch.randn(2, 8)).sum()
    loss.backward()
    assert kinds == {torch.bfloat16}


@pytest.mark.parametrize("spec", ["full", "segments:2"])
def test_running_statistics_survive_a_second_backward_and_a_failing_one(spec: str) -> None:
    model = Stack(norm=nn.BatchNorm1d)
    buffers = list(model.buffers())
    apply_checkpointing(model, spec, None)
    loss = model(torch.randn(4, 8)).sum()
    after = [b.clone() for b in buffers]
    loss.backward(retain_graph=True)
    loss.backward()

    def fail(*_: Any) -> None:
        raise ValueError("in the recomputation")

    other = model(torch.randn(4, 8)).sum()
    after_second = [b.clone() for b in buffers]
    model.blocks[1].first.register_forward_hook(fail)
    with pytest.raises(ValueError, match="recomputation"):
        other.backward()
    assert not all(torch.equal(a, b) for a, b in zip(after, after_second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(buffers, after_second, strict=True))
    assert all(a is b for a, b in zip(model.buffers(), buffers, strict=True))


@pytest.mark.parametrize("spec", ["full", "segments:2"])
def test_less_is_kept_for_the_backward_pass(spec: str) -> None:
    def saved_bytes(chosen: str) -> int:
        model, seen = Stack(blocks=4), dict[int, Tensor]()
        own = {p.data_ptr() for p in model.parameters()}
        apply_checkpointing(model, chosen, None)

        def note(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in own:
                seen[tensor.data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            result = model(torch.randn(64, 8))
        total = sum(t.numel() * t.element_size() for t in seen.values())
        assert result.requires_grad
        return int(total)

    assert saved_bytes(spec) < saved_bytes("none") / 2


def test_without_gradients_nothing_is_recomputed_and_nothing_kept() -> None:
    model = Stack()
    apply_checkpointing(model, "segments:2", None)
    with torch.no_grad():
        assert not model(torch.randn(2, 8)).requires_grad
    assert model(torch.randn(2, 8)).requires_grad


@pytest.mark.parametrize("spec", ["full", "segments:2"])
def test_a_deep_copy_recomputes_its_own_blocks(spec: str) -> None:
    model = Stack()
    apply_checkpointing(model, spec, None)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    copied(torch.randn(2, 8)).sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in copied.head.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_names_identities_and_state_stay() -> None:
    model = Stack()
    before = [(name, id(module)) for name, module in model.named_modules()]
    keys = list(model.state_dict())
    remarks = apply_checkpointing(model, "every:2", None)
    assert [(name, id(module)) for name, module in model.named_modules()] == before
    assert list(model.state_dict()) == keys
    assert remarks == ["2 of 4 blocks (Block) recomputed"]


class Attributes(nn.Module):
    """Blocks as plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = Block(), Block(), nn.Linear(8, 1)


class Stages(nn.Module):
    """Stages that are modules of their own, with the blocks in them."""

    class Stage(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(count))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([self.Stage(2), self.Stage(3)])


class Heads(nn.Module):
    """Attention heads in a list inside each of two blocks: the blocks are meant."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.linear(x))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(Heads.Head() for _ in range(4))
            self.rest = Block()

        def forward(self, x: Tensor) -> Tensor:
            return self.rest(torch.cat([head(x) for head in self.heads], -1))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer() for _ in range(2))


@pytest.mark.parametrize(
    ("model", "kind", "count"),
    [
        (Stack(blocks=4), "Block", 4),
        (Attributes(), "Block", 2),
        (Stages(), "Block", 5),
        (Heads(), "Layer", 2),
        (nn.Sequential(nn.Embedding(3, 8), Block(), Block(), nn.Linear(8, 1)), "Block", 2),
        (nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(3)]), "Sequential", 3),
        (nn.ModuleList([nn.Linear(2, 2) for _ in range(3)]), "Linear", 3),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), 2, enable_nested_tensor=False),
         "TransformerEncoderLayer", 2),
    ],
)  # fmt: skip
def test_blocks_are_found(model: nn.Module, kind: str, count: int) -> None:
    assert [type(block).__name__ for block in find_blocks(model)] == [kind] * count


def test_every_child_of_a_flat_model_is_a_block() -> None:
    model = flat()
    assert find_blocks(model) == list(model)


def test_a_model_without_blocks_is_refused_in_words() -> None:
    with pytest.raises(SettingsNotApplicable, match=r"checkpoint_blocks\(model\)"):
        apply_checkpointing(nn.Linear(2, 2), "full", None)
    with pytest.raises(SettingsNotApplicable, match="gave no blocks"):
        apply_checkpointing(Stack(), "full", [])
    with pytest.raises(SettingsNotApplicable, match="at least 9 blocks"):
        apply_checkpointing(Stack(), "segments:9", None)


def test_segments_are_even_and_never_begin_in_place() -> None:
    blocks = [nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 2)]
    segments = split_into_segments(blocks, 2)
    assert [len(segment) for segment in segments] == [4, 1]
    assert [block for segment in segments for block in segment] == blocks


class Skips(Stack):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks[2](self.blocks[0](x)))


class Between(Stack):
    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x) * 2
        return self.head(x)


class Stops(Stack):
    """Leaves after the first block; only the next pass can tell."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks[0](x))


@pytest.mark.parametrize("cls", [Skips, Between, Stops])
def test_segments_refuse_a_model_that_is_no_chain(cls: type[Stack]) -> None:
    model = cls()
    apply_checkpointing(model, "segments:2", None)

    def two_passes() -> None:
        model(torch.randn(2, 8)).sum().backward()
        model(torch.randn(2, 8)).sum().backward()

    with pytest.raises(SettingsNotApplicable, match="use full or every:N"):
        two_passes()


def test_segments_refuse_hooks_between_their_blocks() -> None:
    model = Stack()
    model.blocks[0].register_forward_hook(lambda *_: None)
    with pytest.raises(SettingsNotApplicable, match="hooks"):
        apply_checkpointing(model, "segments:2", None)


class Grows(nn.Module):
    """DenseNet-like: the model adds to the list that its blocks are given."""

    class Layer(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.linear, self.act = nn.Linear(width, 4), nn.Tanh()

        def forward(self, features: list[Tensor]) -> Tensor:
            return self.act(self.linear(torch.cat(features, 1)))

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.Layer(width) for width in (8, 12, 16))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


@pytest.mark.parametrize("spec", ["full", "every:2", "selective"])
def test_a_list_that_the_model_extends_is_recomputed_as_it_was(spec: str) -> None:
    assert_same_as_plain(Grows(), spec, lambda model: model(torch.linspace(0, 1, 16).reshape(2, 8)))


class ChangesInput(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.add_(1.0))


class KeepsState(Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


@pytest.mark.parametrize("cls", [ChangesInput, KeepsState])
def test_a_block_that_a_second_run_would_change_is_refused(cls: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), cls(), cls())
    apply_checkpointing(model, "full", None)
    with pytest.raises(SettingsNotApplicable, match="in place"):
        model(torch.randn(2, 8))


def test_selective_refuses_a_kept_result_that_is_overwritten() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)) for _ in range(2)))
    apply_checkpointing(model, "selective", None)
    with pytest.raises(SettingsNotApplicable, match="overwrites in place"):
        model(torch.randn(2, 8)).sum().backward()


def test_selective_does_not_run_matrix_products_again() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class CountProducts(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += function in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
            return function(*args, **(kwargs or {}))

    def products(spec: str) -> int:
        model = Stack()
        apply_checkpointing(model, spec, None)
        with CountProducts() as counted:
            model(torch.randn(2, 8)).sum().backward()
        return int(counted.count)

    assert products("selective") == products("none") < products("full")


def test_selective_runs_attention_with_dropout_again() -> None:
    q = torch.zeros(1, 1, 2, 4)
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention.default
    assert _selective_policy(None, flash, q, q, q) == CheckpointPolicy.MUST_SAVE
    assert _selective_policy(None, flash, q, q, q, 0.1, True) == CheckpointPolicy.PREFER_RECOMPUTE
    assert _selective_policy(None, efficient, q, q, q, None, True, 0.0) == CheckpointPolicy.MUST_SAVE
    assert _selective_policy(None, efficient, q, q, q, None, True, dropout_p=0.1) == CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["full", "selective", "segments:2"])
def test_a_compiled_model_recomputes_too(spec: str) -> None:
    torch.manual_seed(0)
    model = Stack()
    again = copy.deepcopy(model)
    apply_checkpointing(again, spec, None)
    again.compile(backend="aot_eager")
    samples = torch.randn(4, 8)
    for each in (model, again):
        each(samples).pow(2).mean().backward()
    assert_equal_gradients(again, gradients(model), 1e-6)
