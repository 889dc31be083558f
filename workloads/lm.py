"""GPT-style language model on text: the interpreter's own library sources, or -D data=FILE.

Options: size=tiny|small|base, data=FILE, dropout=P, sequence=N. Tokens are bytes, so no tokenizer is needed.
"""

from __future__ import annotations

import math
import sysconfig
from dataclasses import dataclass, replace
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
        self.size = SIZES[size]
        if sequence is not None:
            self.size = replace(self.size, sequence=tokens_from(sequence))
        self.dropout = probability_from(dropout)
        self.data = None if data is None else file_from(data)

    def build_model(self) -> nn.Module:
        return LanguageModel(self.size, self.dropout)

    def build_dataset(self) -> Dataset[Tensor]:
        text = read_library() if self.data is None else bytearray(self.data.read_bytes())
        needed = self.size.sequence + 1
        if len(text) < needed:
            source = "the interpreter's library" if self.data is None else f"data file {self.data}"
            raise ValueError(f"{source} is too short: it has {len(text)} bytes, one sample needs {needed}")
        return Windows(torch.frombuffer(text, dtype=torch.uint8), self.size.sequence)

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


def tokens_from(text: str) -> int:
    """A sequence length from an option."""
    if not text.isdecimal() or not 0 < int(text) <= 1 << 20:
        raise ValueError(f"sequence={text} is not a number of tokens, such as 256")
    return int(text)


def probability_from(text: str) -> float:
    """A dropout probability from an option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise ValueError(f"dropout={text} is not a probability, such as 0.1")
    return value


def file_from(text: str) -> Path:
    """The path of the user's text from an option."""
    path = Path(text).expanduser()
    if not path.is_file():
        raise ValueError(f"data={text} is not a file; give a text file, or leave data out")
    return path


def read_library() -> bytearray:
    """Source text of the interpreter's library, in a fixed order."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= LIBRARY_BYTES:
            break
    return text
