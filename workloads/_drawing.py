"""Draw photograph-like images: light, clouds of detail at every scale, and objects whose boxes are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Shape = Callable[[Tensor, Tensor], Tensor]
"""Of coordinates from -1 to 1 within an object's box: positive inside the object, falling to 0 at its edge."""
SHAPES: dict[str, Shape] = {
    "cross": lambda u, v: torch.minimum(0.35 - torch.minimum(u.abs(), v.abs()), 1 - torch.maximum(u.abs(), v.abs())),
    "diamond": lambda u, v: 1 - u.abs() - v.abs(),
    "disc": lambda u, v: 1 - (u * u + v * v).sqrt(),
    "plate": lambda u, v: 1 - torch.maximum(u.abs(), v.abs()),
    "ring": lambda u, v: 0.25 - ((u * u + v * v).sqrt() - 0.75).abs(),
    "tent": lambda u, v: torch.minimum((v + 1) / 2 - u.abs(), 1 - v),
}
CATEGORIES = tuple(SHAPES)
ASPECTS = (4 / 3, 3 / 4, 3 / 2, 2 / 3, 1.0, 16 / 9)
VISIBLE_FRACTION = 0.3
"""An object of which less can be seen, since others lie over it, gets no box."""


@dataclass(frozen=True)
class Object:
    """One object of an image."""

    category: int
    box: tuple[int, int, int, int]
    """Left, top, right, bottom of what is visible, in pixels; right and bottom are the first outside."""


class Painter:
    """Draws one image from one seed; the same seed draws the same image."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)

    def between(self, low: float, high: float) -> float:
        """A random number of this range."""
        return low + (high - low) * torch.rand((), generator=self._random).item()

    def whole(self, low: int, high: int) -> int:
        """A random whole number from low to high, both included."""
        return int(torch.randint(low, high + 1, (), generator=self._random))

    def size(self, shortest: int, longest: int) -> tuple[int, int]:
        """Height and width of an image whose sides lie within these bounds, in an aspect that cameras have."""
        aspect = ASPECTS[self.whole(0, len(ASPECTS) - 1)]
        wide = max(aspect, 1 / aspect)
        short = self.between(shortest, max(shortest, longest / wide))
        long = min(short * wide, longest)
        return (round(short), round(long)) if aspect >= 1 else (round(long), round(short))

    def image(self, height: int, width: int, main: int) -> tuple[Tensor, list[Object]]:
        """Pixels, uint8 [3, height, width], and the objects; the largest and foremost is of category `main`."""
        detail = self._clouds(1, height, width, self.between(0.75, 0.9))
        tint = 14 * self._clouds(3, height // 8, width // 8, 0.5) + self._colour()
        # In place: at millions of pixels, new memory takes longer than the arithmetic.
        pixels = F.interpolate(tint[:, None], (height, width), mode="bilinear")[:, 0]
        pixels.add_(detail, alpha=28).add_(self._light(height, width))
        owner = torch.zeros(height, width, dtype=torch.uint8)
        drawn = []
        for number in range(self.whole(1, 5), 0, -1):
            foremost = number == 1
            category = main if foremost else self.whole(0, len(CATEGORIES) - 1)
            area = self._object(pixels, detail, owner, len(drawn) + 1, category, foremost)
            drawn.append((category, area))
        pixels.add_(torch.randn(1, height, width, generator=self._random), alpha=self.between(2, 5))
        objects = [o for n, (category, area) in enumerate(drawn, 1) if (o := _seen(owner, n, category, area))]
        return pixels.clamp_(0, 255).to(torch.uint8), objects

    def _object(self, pixels: Tensor, detail: Tensor, owner: Tensor, number: int, category: int, foremost: bool) -> int:
        """Paint one object over what is there; gives its area in pixels."""
        height, width = owner.shape
        share = self.between(0.4, 0.6) if foremost else self.between(0.15, 0.35)
        h = max(12, round(min(height, width) * share * self.between(0.8, 1.2)))
        w = max(12, round(min(height, width) * share * self.between(0.8, 1.2)))
        h, w = min(h, height), min(w, width)
        top, left = self.whole(0, height - h), self.whole(0, width - w)
        window = (..., slice(top, top + h), slice(left, left + w))
        v, u = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        # One pixel of soft edge, as a lens makes it.
        cover = (SHAPES[CATEGORIES[category]](u, v) * min(h, w) / 2).clamp(0, 1)
        turn, waves = self.between(0, math.pi), self.between(4, 20)
        stripes = torch.sin(waves * (u * math.cos(turn) + v * math.sin(turn)))
        relief = stripes.mul_(self.between(5, 30)).add_(detail[0, :h, :w].flip(-1), alpha=self.between(5, 25))
        surface = self._colour() + relief.add_(self._light(h, w))
        pixels[window].lerp_(surface, cover.expand_as(surface))
        inside = cover > 0.5
        owner[window][inside] = number
        return int(inside.sum())

    def _clouds(self, channels: int, height: int, width: int, roughness: float) -> Tensor:
        """Noise at every scale, of standard deviation about 1, each octave `roughness` times as strong as the last."""
        octaves = max(1, math.ceil(math.log2(max(2, min(height, width) / 4))))
        # Channels stand where the batch would: torch resizes that three times as fast.
        field, strength, power = torch.zeros(channels, 1, 1, 1), 1.0, 0.0
        for octave in range(octaves, -1, -1):
            size = (max(1, -(-height >> octave)), max(1, -(-width >> octave)))
            field = F.interpolate(field, size, mode="bilinear")
            field += strength * torch.randn(field.shape, generator=self._random)
            power += strength**2
            strength *= roughness
        return field[:, 0].div_(math.sqrt(power))

    def _colour(self) -> Tensor:
        return torch.rand(3, 1, 1, generator=self._random) * 150 + 50

    def _light(self, height: int, width: int) -> Tensor:
        """Light that falls from one side."""
        turn, strength = self.between(0, 2 * math.pi), self.between(20, 70)
        down, across = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)
        return strength * (down * math.sin(turn) + across * math.cos(turn))


def _seen(owner: Tensor, number: int, category: int, area: int) -> Object | None:
    """The object with the box of what can be seen of it; None where that is too little."""
    mask = owner == number
    if int(mask.sum()) < VISIBLE_FRACTION * area:
        return None
    rows, columns = mask.any(1).nonzero(), mask.any(0).nonzero()
    return Object(category, (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1))
