"""PyTorch's own layers of many parts: the transformer encoder, attention, recurrent nets."""

import torch
from torch import nn
from torch.nn import functional as F

from models import Specimen


class Classifier(nn.Module):
    """An encoder over padded sequences; the first state is classified."""

    def __init__(self, width=8, dropout=0.1):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=dropout, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        states = self.encoder(x)
        return self.head(states[:, 0])


def layer_by_hand(layer, note, at, x):
    h = note(layer.self_attn(x, x, x, need_weights=False)[0], f"{at}.self_attn[0]")
    x = note(layer.norm1(x + note(layer.dropout1(h), f"{at}.dropout1")), f"{at}.norm1")
    h = note(F.gelu(note(layer.linear1(x), f"{at}.linear1")), f"{at}.gelu")
    h = note(layer.linear2(note(layer.dropout(h), f"{at}.dropout")), f"{at}.linear2")
    return note(layer.norm2(x + note(layer.dropout2(h), f"{at}.dropout2")), f"{at}.norm2", at)


def classifier_by_hand(model, note, x):
    x = note(x, "forward.x")
    for index, layer in enumerate(model.encoder.layers):
        x = layer_by_hand(layer, note, f"encoder.layers.{index}", x)
    return note(model.head(note(x, "encoder", "forward.states")[:, 0]), "head", "forward")


class Attending(nn.Module):
    """The module of attention as it is, with its weights, and `scaled_dot_product_attention` besides."""

    def __init__(self, width=8):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True)
        self.project = nn.Linear(width, 3 * width)

    def forward(self, x):
        mixed, weights = self.attention(x, x, x)
        q, k, v = self.project(mixed).chunk(3, dim=-1)
        causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return causal + mixed, weights


def attending_by_hand(model, note, x):
    mixed, weights = model.attention(x, x, x)
    mixed = note(mixed, "attention[0]", "forward.mixed")
    weights = note(weights, "attention[1]", "forward.weights")
    q, k, v = (note(model.project(mixed), "project")).chunk(3, dim=-1)
    q, k, v = note(q, "forward.q"), note(k, "forward.k"), note(v, "forward.v")
    causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    causal = note(causal, "scaled_dot_product_attention", "forward.causal")
    return note(causal + mixed, "add"), weights


class Recurrent(nn.Module):
    """A nested tuple comes out of the first layer, a state goes into the second."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, dropout=0.2, batch_first=True, bidirectional=True)
        self.gru = nn.GRUCell(8, 4)

    def forward(self, x):
        out, (h, c) = self.lstm(x)
        state = h[-1]
        for step in out.unbind(1):
            state = self.gru(step, state)
        return state, c


def recurrent_by_hand(model, note, x):
    out, (h, c) = note(model.lstm(note(x, "forward.x")), "lstm", "lstm.forward")
    out, h = note(out, "lstm[0]", "forward.out"), note(h, "lstm[1][0]", "forward.h")
    c = note(c, "lstm[1][1]", "forward.c")
    state = note(h[-1], "forward.state")
    for step in out.unbind(1):
        state = note(model.gru(note(step, "forward.step"), state), "gru", "forward.state")
    return state, c


SPECIMENS = [
    Specimen(
        "transformer_encoder",
        make=Classifier,
        example=lambda: (torch.randn(2, 5, 8),),
        by_hand=classifier_by_hand,
        edits=(
            ("encoder.layers.0.linear1", lambda value: value * 2),
            ("encoder.layers.1.gelu", torch.zeros_like),
            ("encoder.layers.0", lambda value: value.flip(1)),
            ("encoder.layers.1.self_attn[0]", torch.zeros_like),
            ("forward.states", lambda value: value + 1),
        ),
        fast_path=True,
    ),
    Specimen(
        "attention",
        make=Attending,
        example=lambda: (torch.randn(2, 5, 8),),
        by_hand=attending_by_hand,
        edits=(
            ("attention[0]", lambda value: value * 2),
            ("attention[1]", torch.zeros_like),
            ("forward.q", lambda q: q * 3),
            ("scaled_dot_product_attention", torch.zeros_like),
        ),
        fast_path=True,
    ),
    Specimen(
        "recurrent",
        make=Recurrent,
        example=lambda: (torch.randn(2, 5, 3),),
        by_hand=recurrent_by_hand,
        edits=(
            ("lstm[1][0]", torch.zeros_like),
            ("lstm[0]", lambda value: value.flip(1)),
            ("lstm", lambda value: (value[0] * 2, value[1])),
            ("forward.step", lambda step: step * 0.5),
            ("gru", lambda value: value + 0.1),
        ),
    ),
]
