"""GPT-style language model on text: the interpreter's own library sources, or -D data=FILE.

Options: size=tiny|small|base, data=FILE, dropout=P, sequence=N. Tokens are bytes, so no tokenizer is needed.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

VOCABULARY = 256
LIBRARY_BYTES = 16 << 20


@dataclass(frozen=True)
class Size:
    """Shape of the model: `base` is that of GPT-2 small."""

    layers: int
    width: int
    heads: int
    sequence: int


SIZES = {
    "tiny": Size(layers=2, width=64, heads=2, sequence=64),
    "small": Size(layers=6, width=384, heads=6, sequence=256),
    "base": Size(layers=12, width=768, heads=12, sequence=1024),
}


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed_forward(self.feed_forward_norm(x))


class LanguageModel(nn.Module):
    """Decoder-only transformer; the output layer shares the embedding's weights."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, size.width)
        self.positions = nn.Embedding(size.sequence, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads, dropout) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, VOCABULARY, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.tokens.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        # 0.02 as in GPT-2: the default N(0, 1) embedding makes denormal gradients, 50 times slower on a CPU.
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Windows(Dataset[Tensor]):
    """Consecutive windows of `length` + 1 bytes: inputs and the bytes that follow them."""

    def __init__(self, text: Tensor, length: int) -> None:
        self.text = text
        self.length = length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.length
        return self.text[start : start + self.length + 1].long()


class Workload:
    """The language model as a workload."""

    global_batch_size = 16

    def __init__(
        self, size: str = "small", data: str | None = None, dropout: str = "0", sequence: str | None = None
    ) -> None:
        if size not in SIZES:
            raise ValueError(f"size={size} is not one of {', '.join(SIZES)}")
        shape = SIZES[size]
        length = shape.sequence if sequence is None else int(sequence)
        self.size = Size(shape.layers, shape.width, shape.heads, length)
        self.dropout = float(dropout)
        self.data = data

    def build_model(self) -> nn.Module:
        return LanguageModel(self.size, self.dropout)

    def build_dataset(self) -> Dataset[Tensor]:
        text = read_file(Path(self.data)) if self.data else read_library()
        dataset = Windows(torch.frombuffer(bytearray(text), dtype=torch.uint8), self.size.sequence)
        if len(dataset) == 0:
            raise ValueError(f"{self.data} is too short: {len(text)} bytes, one window needs {self.size.sequence + 1}")
        return dataset

    def build_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
        inputs, targets = batch[:, :-1], batch[:, 1:]
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()), targets.numel()

    def checkpoint_blocks(self, model: LanguageModel) -> list[nn.Module]:
        return list(model.blocks)

    def batch_size_of(self, batch: Tensor) -> int:
        return len(batch)

    def largest_batch(self, n: int) -> Tensor:
        return torch.zeros(n, self.size.sequence + 1, dtype=torch.long)


def read_file(path: Path) -> bytes:
    """The bytes of the user's text."""
    if not path.is_file():
        raise FileNotFoundError(f"data file {path} does not exist")
    return path.read_bytes()


def read_library() -> bytes:
    """Source text of the interpreter's library, in a fixed order."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= LIBRARY_BYTES:
            break
    return bytes(text)
