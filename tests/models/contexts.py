"""Models that switch something for a part of their way: gradients off, another precision, checkpoints."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from models import Specimen


class Switching(nn.Module):
    """A part without gradients, a part in bfloat16, a part with gradients again."""

    def __init__(self):
        super().__init__()
        self.teacher, self.student, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    @torch.no_grad()
    def target(self, x):
        t = self.teacher(x).softmax(-1)
        return t

    def forward(self, x):
        target = self.target(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.student(x)
            low = h @ self.head.weight.T
            with torch.autocast("cpu", enabled=False):
                high = h.float() * target
        with torch.no_grad():
            scale = high.abs().max()
        return low.float() + self.head(high) / scale, target


def switching_by_hand(model, note, x):
    x = note(x, "forward.x")
    with torch.no_grad():
        t = note(note(model.teacher(note(x, "target.x")), "teacher").softmax(-1), "softmax", "target.t", "target")
    target = note(t, "forward.target")
    half = torch.bfloat16
    h = F.linear(x.to(half), model.student.weight.to(half), model.student.bias.to(half))
    h = note(h, "student", "forward.h")
    low = note(h @ model.head.weight.T.to(half), "matmul", "forward.low")
    high = note(h.float() * target, "mul", "forward.high")
    scale = note(high.abs().max().detach(), "forward.scale")
    result = low.float() + note(note(model.head(high), "head") / scale, "div")
    return note(result, "add"), target


class Layer(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear, self.drop = nn.Linear(width, width), nn.Dropout(0.3)

    def forward(self, x):
        h = torch.tanh(self.linear(x))
        return x + self.drop(h)


class Checkpointed(nn.Module):
    """The layers run a second time in the backward pass."""

    def __init__(self, reentrant):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.reentrant = reentrant

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x.sin()


def checkpointed_by_hand(model, note, x):
    x = note(model.first(note(x, "forward.x")), "first", "forward.x")
    for index, layer in enumerate(model.layers):
        at = f"layers.{index}"
        linear = note(layer.linear(note(x, f"{at}.forward.x")), f"{at}.linear")
        h = note(torch.tanh(linear), f"{at}.tanh", f"{at}.forward.h")
        x = note(x + note(F.dropout(h, 0.3, layer.training), f"{at}.drop"), f"{at}.add", at, "forward.x")
    return note(x.sin(), "sin", "forward")


SPECIMENS = [
    Specimen(
        "switching",
        make=Switching,
        example=lambda: (torch.randn(3, 4),),
        by_hand=switching_by_hand,
        edits=(
            ("target.t", lambda t: 1 - t),
            ("teacher", lambda value: value * 2),
            ("forward.h", lambda h: h * 2),
            ("forward.scale", lambda scale: scale + 1),
            ("matmul", torch.zeros_like),
        ),
    ),
] + [
    Specimen(
        f"checkpointed_{'reentrant' if reentrant else 'not_reentrant'}",
        make=lambda reentrant=reentrant: Checkpointed(reentrant),
        example=lambda: (torch.randn(3, 4),),
        by_hand=checkpointed_by_hand,
        edits=(
            ("layers.0.forward.h", lambda h: h * 2),
            ("layers.1.linear", torch.zeros_like),
            ("layers.1", lambda value: value * 0.5),
        ),
    )
    for reentrant in (True, False)
]
