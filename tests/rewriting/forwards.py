"""Models with what usually goes wrong when a model is rewritten, each with an example of its arguments."""

import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from models.resnet import BasicBlock
from torch import nn


def shaken(model):
    """The model with every parameter and buffer of floats random: zeros would make equality mean nothing."""
    with torch.no_grad():
        for value in [*model.parameters(), *model.buffers()]:
            if value.is_floating_point() and value.numel() > 1:
                value.copy_(torch.rand_like(value) * 0.5 + 0.1)
    return model


class ResNet(nn.Module):
    def __init__(self, widths=(8, 16), depth=2, classes=5):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True))
        blocks, inside = OrderedDict(), widths[0]
        for number, width in enumerate(widths):
            layer = [BasicBlock(inside, width, 2 if number else 1)]
            layer += [BasicBlock(width, width, 1) for _ in range(depth - 1)]
            blocks[f"layer{number + 1}"], inside = nn.Sequential(*layer), width
        self.layers = nn.Sequential(blocks)
        self.fc = nn.Linear(inside, classes)

    def forward(self, x):
        x = self.layers(self.stem(x))
        x = F.adaptive_avg_pool2d(x, 1)
        return self.fc(torch.flatten(x, 1))


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, width * 4, 1, bias=False), nn.BatchNorm2d(width * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inside != width * 4:
            self.downsample = nn.Sequential(nn.Conv2d(inside, width * 4, 1, stride), nn.BatchNorm2d(width * 4))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet50(nn.Module):
    """The 53 convolutions of a ResNet-50, narrow."""

    def __init__(self, width=4):
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        inside = width
        for number, depth in enumerate((3, 4, 6, 3)):
            wide = width * 2**number
            layer = []
            for index in range(depth):
                layer.append(Bottleneck(inside, wide, 2 if number and not index else 1))
                inside = wide * 4
            setattr(self, f"layer{number + 1}", nn.Sequential(*layer))
        self.fc = nn.Linear(inside, 10)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class UNet(nn.Module):
    """In-place statements whose value nobody reads, parts of tensors assigned, skips concatenated."""

    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        F.relu_(a)
        b = self.down2(F.max_pool2d(a, 2))
        b.relu_()
        c = self.up(b)
        c[:, 0] = 0.5
        c[:, 1] += 1
        return torch.sigmoid(self.out(torch.cat([a, c], dim=1)))


class Attention(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(16, 16, dtype=torch.bool)))
        self.dropout = 0.2

    def forward(self, x):
        batch, time, width = x.size()
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (one.view(batch, time, self.heads, width // self.heads).transpose(1, 2) for one in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(~self.mask[:time, :time], float("-inf"))
        weights = F.dropout(F.softmax(scores, dim=-1), self.dropout, training=self.training)
        y = (weights @ v).transpose(1, 2).contiguous().view(batch, time, width)
        return self.proj(y)


class Layer(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), Attention(width)
        self.norm2, self.mlp = (
            nn.LayerNorm(width),
            nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width), nn.Dropout(0.1)),
        )

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tied weights, positions made in the forward."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(11, 8), nn.Embedding(16, 8)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens):
        positions = torch.arange(tokens.size(1), device=tokens.device)
        x = self.wte(tokens) + self.wpe(positions)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Several(nn.Module):
    """Several inputs, keyword and default arguments, a dict out."""

    def __init__(self):
        super().__init__()
        self.bilinear, self.fc = nn.Bilinear(4, 4, 4), nn.Linear(4, 4)

    def forward(self, a, b, *, scale=2.0, mask=None, extra: bool = False):
        c = self.bilinear(a, b) * scale
        if mask is not None:
            c = c.masked_fill(mask, 0.0)
        if extra:
            c = c + torch.add(a, b, alpha=2)
        return {"sum": a + b, "parts": [c, (self.fc(input=c), None)], "scale": scale}


Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    logits: torch.Tensor
    hidden: torch.Tensor | None = None


class NamedOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        return Pair(y, y.relu()), OrderedDict(y=y), Output(y.sum())


class Buffers(nn.Module):
    """Running statistics of the user's own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(4))
        self.scale = torch.full((4,), 3.0)

    def forward(self, x):
        self.count += 1
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.scale.add_(1)
        return (x - self.mean) * self.scale / self.count


class Random(nn.Module):
    """New tensors and random numbers, made anew in each forward."""

    def forward(self, x):
        noise = torch.randn(4)
        total = torch.zeros(4)
        total.add_(x.sum(0))
        total += torch.ones(4)
        return x + noise, total, torch.rand_like(x)


class Modes(nn.Module):
    """Frozen features, and gradients switched on again."""

    def __init__(self):
        super().__init__()
        self.frozen, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        with torch.no_grad():
            features = self.frozen(x).relu()
            with torch.enable_grad():
                bonus = self.head(x)
        return self.head(features) + bonus


class Decides(nn.Module):
    """Another graph in training than in evaluation, in each of two parts."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([Branch(), Branch()])

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("m", torch.zeros(4))
        self.register_buffer("v", torch.ones(4))

    def forward(self, x):
        x = self.bn(self.fc(x))
        if self.training:
            x = F.dropout(x, 0.3)
        else:
            x = x * 0.7
        return F.batch_norm(x, self.m, self.v, training=self.training or x is None)


class SharedTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.again = self.cell[0]

    def forward(self, x):
        for _ in range(3):
            x = self.cell(x) + x
        return self.again(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.attention = nn.LSTM(4, 8, batch_first=True), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        out, (h, c) = self.lstm(x)
        mixed = self.attention(out, out, out, need_weights=False)[0]
        return self.head(mixed[:, -1] + h[0]), c


class Signs(nn.Module):
    """Operators, also with numbers on the left, and shapes calculated with."""

    def forward(self, x, y):
        n = x.shape[0]
        half = n // 2
        a = 1 - x + y * 2 - 2**y + n * x
        b = (x > y) & (x < 2) | ~(y > 0)
        c = 1 / (y.abs() + 1) // 0.25 % 3
        a[half:] = -x[half:]
        a -= c
        a *= b.float()
        n -= 1
        first, second = x.split(2, dim=1)
        return a.reshape(n + 1, -1), (x @ y.t()).max(1)[0], first + second, torch.stack([x, y]).sum(0)[None]


class Root(nn.Module):
    """Functions in the forward of the model itself, parameters of its own."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))

    def forward(self, x):
        h = F.relu(F.linear(x, self.weight, self.bias))
        return F.softmax(h * self.weight.shape[0], -1) + self.helper(h)

    def helper(self, h):
        return torch.einsum("bi,ij->bj", h, self.weight)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return grad * 100


class CustomGradient(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return Square.apply(self.fc(x))


class Stores(nn.Module):
    """Attributes set for whoever wants to read them afterwards."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.last = None

    def forward(self, x):
        self.last = self.fc(x)
        return self.last.relu()


class Lists(nn.Module):
    """A value or a list of values, told apart by its type, as DenseNet does."""

    def __init__(self):
        super().__init__()
        self.fcs = nn.ModuleList(nn.Linear(4 * (index + 1), 4) for index in range(3))

    def forward(self, x):
        features = [x] if isinstance(x, torch.Tensor) else x
        for fc in self.fcs:
            features.append(fc(torch.cat(features, 1)))
        return torch.cat(features, 1)


def examples():
    """Name, model, arguments."""
    x = torch.randn(4, 4)
    return {
        "resnet": (ResNet(), (torch.randn(2, 3, 8, 8),), {}),
        "unet": (UNet(), (torch.randn(2, 1, 8, 8),), {}),
        "gpt": (GPT(), (torch.randint(11, (2, 6)),), {}),
        "several": (Several(), (x, torch.randn(4, 4)), {"scale": 2.0}),
        "named_outputs": (NamedOutputs(), (x,), {}),
        "buffers": (Buffers(), (x,), {}),
        "random": (Random(), (x,), {}),
        "modes": (Modes(), (x,), {}),
        "decides": (Decides(), (x,), {}),
        "shared_twice": (SharedTwice(), (x,), {}),
        "recurrent": (Recurrent(), (torch.randn(2, 3, 4),), {}),
        "signs": (Signs(), (x, torch.randn(4, 4)), {}),
        "root": (Root(), (x,), {}),
        "custom_gradient": (CustomGradient(), (x,), {}),
        "stores": (Stores(), (x,), {}),
        "lists": (Lists(), (x,), {}),
        "mlp": (nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Dropout()), nn.Linear(8, 2)), (x,), {}),
        "encoder": (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2), (x[None],), {}),
    }
