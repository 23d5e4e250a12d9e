"""Models that take and give dicts, lists and tuples, and that change them as they go."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from models import Specimen


class Fused(nn.Module):
    """A dict goes in, a dict comes out."""

    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(4, 6), nn.Embedding(8, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, batch):
        parts = {"image": self.image(batch["image"])}
        parts["text"] = self.text(batch["text"]).mean(1)
        parts["both"] = parts["image"] * torch.sigmoid(parts["text"])
        cache = {"k": [parts["both"], parts["text"]]}
        logits = self.head(cache["k"][0])
        return {"logits": logits, "features": parts, "scale": 2.0}


def fused_by_hand(model, note, batch):
    image = note(F.linear(batch["image"], model.image.weight, model.image.bias), "image", "forward.parts['image']")
    text = note(F.embedding(batch["text"], model.text.weight), "text")
    text = note(note(text.mean(1), "mean"), "forward.parts['text']")
    both = note(image * note(torch.sigmoid(text), "sigmoid"), "mul", "forward.parts['both']", "forward.cache['k'][0]")
    note(text, "forward.cache['k'][1]")
    logits = note(model.head(both), "head", "forward.logits", "forward['logits']")
    return {"logits": logits, "features": {"image": image, "text": text, "both": both}, "scale": 2.0}


class State(NamedTuple):
    mean: torch.Tensor
    spread: torch.Tensor


class Encoder(nn.Module):
    """Gives a named tuple."""

    def __init__(self):
        super().__init__()
        self.mean, self.spread = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, *, floor=0.0):
        return State(self.mean(x), F.softplus(self.spread(x)) + floor)


class Variational(nn.Module):
    """Several methods, keyword-only arguments, *args and **kwargs."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), nn.Linear(3, 4)

    def encode(self, x, **options):
        state = self.encoder(x, **options)
        return state

    def sample(self, state):
        noise = torch.randn_like(state.mean)
        z = state.mean + state.spread * noise
        return z

    def decode(self, z):
        (h, *rest) = self.decoder(z).chunk(2, -1)
        return torch.cat([h.tanh(), *rest], -1)

    def forward(self, *xs, **options):
        states = [self.encode(x, **options) for x in xs]
        return tuple(self.decode(self.sample(state)) for state in states), states


def variational_by_hand(model, note, *xs, floor=0.0):
    states, outs = [], []
    for x in xs:
        x = note(x, "encode.x", "encoder.forward.x")
        mean = note(model.encoder.mean(x), "encoder.mean")
        spread = note(F.softplus(note(model.encoder.spread(x), "encoder.spread")), "encoder.softplus")
        states.append(State(mean, note(spread + floor, "encoder.add")))
    for state in states:
        noise = note(torch.randn_like(state.mean), "sample.noise")
        z = note(state.mean + state.spread * noise, "sample.z", "sample", "decode.z")
        h, rest = note(model.decoder(z), "decoder").chunk(2, -1)
        h = note(h, "decode.h")
        outs.append(note(torch.cat([h.tanh(), rest], -1), "decode"))
    return tuple(outs), states


SPECIMENS = [
    Specimen(
        "dicts",
        make=Fused,
        example=lambda: ({"image": torch.randn(2, 4), "text": torch.randint(8, (2, 3))},),
        by_hand=fused_by_hand,
        edits=(
            ("forward.parts['image']", torch.zeros_like),
            ("text", lambda value: value * 2),
            ("mean", lambda value: value + 1),
            ("head", lambda value: value.softmax(-1)),
        ),
    ),
    Specimen(
        "variational",
        make=Variational,
        example=lambda: (torch.randn(2, 4), torch.randn(2, 4)),
        keywords=lambda: {"floor": 0.1},
        by_hand=variational_by_hand,
        edits=(
            ("sample.noise", torch.zeros_like),
            ("decode.h", lambda h: h * 2),
            ("encoder.softplus", lambda value: value * 0),
            ("sample", lambda z: z + 1),
            ("decode.z", lambda z: z * 0.5),
        ),
    ),
]
