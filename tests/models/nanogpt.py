"""A language model as people write it: fused queries, keys and values, scores and weights by hand, residuals."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from models import Specimen


class Attention(nn.Module):
    def __init__(self, width, heads, length, dropout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)), persistent=False)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(self.mask[:time, :time] == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        mixed = self.drop(weights) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class Feedforward(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x):
        h = F.gelu(self.up(x))
        return F.dropout(self.down(h), self.dropout, self.training)


class Block(nn.Module):
    def __init__(self, width, heads, length, dropout):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads, length, dropout)
        self.mlp = Feedforward(width, dropout)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, vocabulary=16, width=12, heads=2, layers=2, length=8, dropout=0.2):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.layers = nn.ModuleList(Block(width, heads, length, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets=None):
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def attention_by_hand(model, note, at, x):
    batch, time, width = note(x, f"{at}.forward.x").shape
    fused = note(F.linear(x, model.qkv.weight, model.qkv.bias), f"{at}.qkv.linear", f"{at}.qkv", f"{at}.qkv.forward")
    q, k, v = fused.chunk(3, dim=-1)
    q, k, v = note(q, f"{at}.forward.q"), note(k, f"{at}.forward.k"), note(v, f"{at}.forward.v")
    q, k, v = (part.view(batch, time, model.heads, -1).transpose(1, 2) for part in (q, k, v))
    q, k, v = note(q, f"{at}.forward.q"), note(k, f"{at}.forward.k"), note(v, f"{at}.forward.v")
    product = note(q @ k.transpose(-2, -1), f"{at}.matmul")
    scores = note(product / math.sqrt(width // model.heads), f"{at}.div", f"{at}.forward.scores")
    masked = scores.masked_fill(model.mask[:time, :time] == 0, float("-inf"))
    scores = note(masked, f"{at}.masked_fill", f"{at}.forward.scores")
    weights = note(torch.softmax(scores, -1), f"{at}.softmax", f"{at}.forward.weights")
    kept = note(F.dropout(weights, model.drop.p, model.training), f"{at}.drop.dropout", f"{at}.drop")
    mixed = note(kept @ v, f"{at}.matmul_1", f"{at}.forward.mixed")
    mixed = note(mixed.transpose(1, 2).reshape(batch, time, width), f"{at}.reshape")
    out = note(F.linear(mixed, model.out.weight, model.out.bias), f"{at}.out.linear", f"{at}.out")
    return note(out, f"{at}.forward", at)


def feedforward_by_hand(model, note, at, x):
    x = note(x, f"{at}.forward.x")
    h = note(F.linear(x, model.up.weight, model.up.bias), f"{at}.up.linear", f"{at}.up")
    h = note(F.gelu(h), f"{at}.gelu", f"{at}.forward.h")
    h = note(F.linear(h, model.down.weight, model.down.bias), f"{at}.down.linear", f"{at}.down")
    return note(F.dropout(h, model.dropout, model.training), f"{at}.dropout", f"{at}.forward", at)


def normalised(layer, x):
    return F.layer_norm(x, layer.normalized_shape, layer.weight, layer.bias, layer.eps)


def block_by_hand(model, note, at, x):
    x = note(x, f"{at}.forward.x")
    h = note(normalised(model.ln_1, x), f"{at}.ln_1")
    x = note(x + attention_by_hand(model.attn, note, f"{at}.attn", h), f"{at}.add", f"{at}.forward.x")
    h = note(normalised(model.ln_2, x), f"{at}.ln_2")
    x = note(x + feedforward_by_hand(model.mlp, note, f"{at}.mlp", h), f"{at}.add_1", f"{at}.forward.x")
    return note(x, f"{at}.forward", at)


def gpt_by_hand(model, note, ids, targets=None):
    ids, targets = note(ids, "forward.ids"), note(targets, "forward.targets")
    x = note(F.embedding(ids, model.tokens.weight), "tokens") + model.positions[: ids.shape[1]]
    x = note(x, "add", "forward.x")
    for index, layer in enumerate(model.layers):
        x = note(block_by_hand(layer, note, f"layers.{index}", x), "forward.x")
    logits = note(F.linear(note(normalised(model.norm, x), "norm"), model.head.weight), "head", "forward.logits")
    if targets is None:
        return note(logits, "forward")
    loss = F.cross_entropy(note(logits.flatten(0, 1), "flatten"), note(targets.flatten(), "flatten_1"))
    return logits, note(loss, "cross_entropy", "forward.loss")


def without_first_head(weights):
    return torch.cat([torch.zeros_like(weights[:, :1]), weights[:, 1:]], dim=1)


SPECIMENS = [
    Specimen(
        "nanogpt",
        make=GPT,
        example=lambda: (torch.randint(16, (2, 6)),),
        by_hand=gpt_by_hand,
        edits=(
            ("layers.0.attn.forward.weights", without_first_head),
            ("layers.1.attn.softmax", without_first_head),
            ("layers.0.attn.div", lambda scores: scores * 2),
            ("layers.1.attn.forward.mixed", torch.zeros_like),
            ("layers.0.mlp.forward.x", lambda x: x - x.mean(-1, keepdim=True)),
            ("layers.1.mlp", lambda value: -value),
            ("layers.0.forward.x", lambda x: x * 1.5),
            ("forward.x", lambda x: x + 1),
            ("tokens", lambda value: value.flip(1)),
            ("forward", lambda logits: logits.clamp(min=0)),
        ),
    ),
    Specimen(
        "nanogpt_with_loss",
        make=lambda: GPT(layers=1, dropout=0.0),
        example=lambda: (torch.randint(16, (2, 8)),),
        keywords=lambda: {"targets": torch.randint(16, (2, 8))},
        by_hand=gpt_by_hand,
        edits=(("forward.targets", torch.zeros_like), ("cross_entropy", lambda loss: 3 * loss)),
    ),
]
