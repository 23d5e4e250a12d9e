"""Models: a tiny language model with attention by hand, ResNets as they are known, and layers that do nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["GPT", "Layers", "resnet18", "resnet50"]


class Layers(nn.Module):
    """Layers that give their input back: what is measured is all else."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Identity() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`."""
        for layer in self.layers:
            x = layer(x)
        return x


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("hidden", torch.ones(length, length, dtype=torch.bool).triu(1))
        self.hidden: Tensor

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5
        scores = scores.masked_fill(self.hidden[:time, :time], float("-inf"))
        weights = F.softmax(scores, dim=-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, time, width)
        out: Tensor = self.out(mixed)
        return out


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = _Attention(width, heads, length)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    """A language model whose attention is written out, with the loss in its forward.

    Args:
        vocabulary: how many tokens there are.
        width: of the states.
        layers: how many blocks.
        length: of the longest sequence.
    """

    def __init__(self, vocabulary: int = 64, width: int = 64, layers: int = 4, length: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(_Block(width, 4, length) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """The loss of predicting each token from those before it; `ids` is (batch, time)."""
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class _Residual(nn.Module):
    """A block of a ResNet: convolutions of the given kernels, and what came in added to what comes out."""

    def __init__(self, inside: int, width: int, out: int, kernels: Sequence[int], stride: int) -> None:
        super().__init__()
        sizes = [inside, *[width] * (len(kernels) - 1), out]
        strided = len(kernels) // 2 if len(kernels) > 2 else 0
        for number, kernel in enumerate(kernels):
            step = stride if number == strided else 1
            conv = nn.Conv2d(sizes[number], sizes[number + 1], kernel, step, kernel // 2, bias=False)
            self.add_module(f"conv{number + 1}", conv)
            self.add_module(f"bn{number + 1}", nn.BatchNorm2d(sizes[number + 1]))
        self.depth = len(kernels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or inside != out:
            self.downsample = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        identity, out = x, x
        for number in range(1, self.depth + 1):
            out = self._modules[f"bn{number}"](self._modules[f"conv{number}"](out))  # type: ignore[misc]
            if number < self.depth:
                out = self.relu(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        activated: Tensor = self.relu(out)
        return activated


class _ResNet(nn.Module):
    def __init__(self, width: int, blocks: Sequence[int], kernels: Sequence[int], widening: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.stages = nn.Sequential()
        inside = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                narrow, stride = width * 2**stage, 2 if stage and not number else 1
                self.stages.append(_Residual(inside, narrow, narrow * widening, kernels, stride))
                inside = narrow * widening
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(inside, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stages(self.relu(self.bn1(self.conv1(images))))
        logits: Tensor = self.fc(self.pool(x).flatten(1))
        return logits.logsumexp(1).mean()


def resnet18(width: int = 32) -> nn.Module:
    """With basic blocks, for pictures of 32 by 32."""
    return _ResNet(width, (2, 2, 2, 2), (3, 3), 1)


def resnet50(width: int = 8) -> nn.Module:
    """With bottlenecks: 53 convolutions."""
    return _ResNet(width, (3, 4, 6, 3), (1, 3, 1), 4)
