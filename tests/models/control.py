"""Models whose way depends on their values: branches, loops of any length, a cell called over and over, recursion."""

import torch
from torch import nn
from torch.nn import functional as F

from models import Specimen


class Branches(nn.Module):
    """Goes one way or another, and as often as it takes."""

    def __init__(self):
        super().__init__()
        self.positive, self.negative = nn.Linear(4, 4), nn.Linear(4, 4)
        self.gate = nn.Linear(4, 1)

    def forward(self, x):
        if x.sum() > 0:
            h = self.positive(x)
        else:
            h = -self.negative(x)
        rounds = 0
        while h.norm() > 1 and rounds < 5:
            h = h * 0.6
            rounds += 1
        for row in h:
            if row.max() < 0:
                return self.gate(h) - 1
        if (score := torch.sigmoid(self.gate(h))).mean() > 0.9:
            return score
        return score * rounds


def branches_by_hand(model, note, x):
    x = note(x, "forward.x")
    if x.sum() > 0:
        h = note(F.linear(x, model.positive.weight, model.positive.bias), "positive.linear", "positive", "forward.h")
    else:
        h = note(F.linear(x, model.negative.weight, model.negative.bias), "negative.linear", "negative")
        h = note(-h, "neg", "forward.h")
    rounds = 0
    while h.norm() > 1 and rounds < 5:
        h = note(h * 0.6, "mul" if not rounds else f"mul_{rounds}", "forward.h")
        rounds += 1
    for row in h:
        if note(row, "forward.row").max() < 0:
            return note(note(model.gate(h), "gate") - 1, "sub", "forward")
    score = note(torch.sigmoid(note(model.gate(h), "gate")), "sigmoid", "forward.score")
    if score.mean() > 0.9:
        return note(score, "forward")
    return note(score * rounds, "mul" if not rounds else f"mul_{rounds}", "forward")


class Cell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, h):
        mixed = self.inner(x) + self.outer(h)
        return torch.tanh(mixed)


class Unrolled(nn.Module):
    """The same cell at every step, until the state no longer moves."""

    def __init__(self, width=4):
        super().__init__()
        self.cell = Cell(width)
        self.steps = 0

    def forward(self, xs):
        h = xs.new_zeros(xs.shape[1:])
        states = []
        for x in xs:
            before, h = h, self.cell(x, h)
            states.append(h)
            if (h - before).abs().max() < 0.05:
                break
        self.steps = len(states)
        return torch.stack(states), h


def unrolled_by_hand(model, note, xs):
    cell = model.cell
    h = note(note(xs, "forward.xs").new_zeros(xs.shape[1:]), "new_zeros", "forward.h")
    states = []
    for x in xs:
        x = note(x, "forward.x")
        x, earlier = note(x, "cell.forward.x"), note(h, "cell.forward.h")
        mixed = note(cell.inner(x), "cell.inner") + note(cell.outer(earlier), "cell.outer")
        mixed = note(mixed, "cell.add", "cell.forward.mixed")
        before, h = note(h, "forward.before"), note(torch.tanh(mixed), "cell.tanh", "cell.forward", "cell", "forward.h")
        states.append(h)
        if (h - before).abs().max() < 0.05:
            break
    return note(torch.stack(states), "stack"), h


class Tree(nn.Module):
    """Calls a method of its own again, and itself: a pair of halves, down to single rows."""

    def __init__(self, width=3):
        super().__init__()
        self.join = nn.Linear(2 * width, width)

    def fold(self, rows):
        if len(rows) == 1:
            return rows[0]
        half = len(rows) // 2
        left, right = self.fold(rows[:half]), self.fold(rows[half:])
        both = torch.cat([left, right])
        return torch.tanh(self.join(both))

    def forward(self, rows, depth=0):
        folded = self.fold(rows)
        if depth < 2:
            return folded + self(rows * 0.5, depth + 1)
        return folded


def fold_by_hand(model, note, rows):
    rows = note(rows, "fold.rows")
    if len(rows) == 1:
        return note(rows[0], "fold")
    half = len(rows) // 2
    left = fold_by_hand(model, note, rows[:half])
    right = fold_by_hand(model, note, rows[half:])
    left, right = note(left, "fold.left"), note(right, "fold.right")
    both = note(torch.cat([left, right]), "fold.both")
    return note(torch.tanh(note(model.join(both), "join")), "fold")


def tree_by_hand(model, note, rows, depth=0):
    folded = note(fold_by_hand(model, note, note(rows, "forward.rows")), "forward.folded")
    if depth < 2:
        return note(folded + tree_by_hand(model, note, rows * 0.5, depth + 1), "forward")
    return note(folded, "forward")


SPECIMENS = [
    Specimen(
        f"branches_{name}",
        make=Branches,
        example=lambda shift=shift: (torch.randn(3, 4) + shift,),
        by_hand=branches_by_hand,
        edits=(("forward.h", lambda h: h * 2), ("gate", lambda value: value - 3), ("forward.score", lambda s: s * 0.5)),
    )
    for name, shift in (("positive", 1.0), ("negative", -1.0))
] + [
    Specimen(
        "unrolled",
        make=Unrolled,
        example=lambda: (torch.randn(1, 2, 4).expand(12, 2, 4),),
        by_hand=unrolled_by_hand,
        edits=(
            ("cell.forward.mixed", lambda value: value * 0.5),
            ("cell.forward.h", torch.zeros_like),
            ("forward.h", lambda h: h + 0.1),
            ("cell", lambda h: h * 0.1),
        ),
    ),
    Specimen(
        "tree",
        make=Tree,
        example=lambda: (torch.randn(5, 3),),
        by_hand=tree_by_hand,
        edits=(
            ("fold.left", torch.zeros_like),
            ("join", lambda value: value * 2),
            ("fold.rows", lambda rows: rows + 1),
        ),
    ),
]
