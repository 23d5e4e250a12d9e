"""Which items bear the marks of what is attached to a model?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from torch import nn

from byname.drawing.plan import CALLED, Item, Plan
from byname.watch.hooks import attachments_of

__all__ = ["mark", "marks_of"]


def marks_of(model: nn.Module) -> dict[str, list[str]]:
    """What is attached to a model, by place. Operations are known once they have run."""
    marks: defaultdict[str, list[str]] = defaultdict(list)
    for one in attachments_of(model):
        for path in one.paths:
            marks[path].append(one.label)
    return dict(marks)


def mark(plan: Plan, marks: Mapping[str, Sequence[str]]) -> None:
    """Writes each mark on the items of its path; a place that has no box of its own is marked on the box around it.

    The rest of the path then stands before the mark: ``forward.scores: probe`` on the box of the attention.
    """
    places: defaultdict[str, list[Item]] = defaultdict(list)
    for item in plan.items:
        if item.kind in CALLED:
            places[item.path].append(item)
    for path, words in marks.items():
        around = path
        while around and around not in places:
            around = around.rpartition(".")[0]
        rest = path[len(around) :].lstrip(".")
        for item in places.get(around, ()):
            item.marks += [f"{rest}: {word}" if rest else word for word in words]
