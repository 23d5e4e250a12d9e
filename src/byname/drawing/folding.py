"""Which operations only move, select or rename elements, so that a picture is clearer without them?"""

from __future__ import annotations

from collections import defaultdict

from byname.drawing.plan import Plan, Wire

__all__ = ["PLUMBING", "fold"]

PLUMBING = frozenset(
    """alias as_strided atleast_1d atleast_2d atleast_3d bfloat16 broadcast_to chunk clone contiguous cpu
    cuda detach diagonal double expand expand_as flatten float getitem half movedim moveaxis narrow permute
    reshape reshape_as select split split_with_sizes squeeze swapaxes swapdims t T H mH mT tensor_split to
    transpose type type_as unbind unflatten unsafe_chunk unsafe_split unsqueeze view view_as""".split()
)
"""Functions that give the same elements in another shape, order, precision or place, or some of them."""


def fold(plan: Plan) -> None:
    """Takes plumbing with one tensor in out of the plan: its wires go on to the next item and remember the name."""
    coming: defaultdict[int, list[Wire]] = defaultdict(list)
    going: defaultdict[int, list[Wire]] = defaultdict(list)
    for wire in plan.wires:
        coming[wire.target].append(wire)
        going[wire.source].append(wire)
    gone: dict[int, Wire] = {}
    for item in plan.items:
        plumbing = item.kind == "operation" and item.operation in PLUMBING and not item.marks
        if plumbing and len(coming[item.number]) == 1 and going[item.number] and _has_company(plan, item.parent):
            (gone[item.number],) = coming[item.number]
    plan.wires = [_longer(plan, wire, gone) for wire in plan.wires if wire.target not in gone]
    for parent in {plan.items[number].parent for number in gone}:
        item = plan.items[parent]
        item.children = [child for child in item.children if child not in gone]


def _has_company(plan: Plan, parent: int) -> bool:
    """Whether a box keeps something in it: one that does nothing but plumbing shows it."""
    inside = (plan.items[child] for child in plan.items[parent].children)
    return any(
        child.kind == "module" or child.operation not in PLUMBING for child in inside if child.kind != "parameter"
    )


def _longer(plan: Plan, wire: Wire, gone: dict[int, Wire]) -> Wire:
    """The wire from where its tensor really comes from."""
    source, via = wire.source, list(wire.via)
    while source in gone:
        via.append(plan.items[source].operation)
        source = gone[source].source
    return Wire(source, wire.target, wire.shape, tuple(reversed(via)))
