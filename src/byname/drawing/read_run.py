"""Which items and wires does one run of a model give?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from byname.drawing.plan import Item, Plan, Shape, Wire
from byname.drawing.traits import shape_of
from byname.model.call_graph import Call, Flow
from byname.reading.modules import state_of
from byname.table import counted

__all__ = ["read_flow"]


def read_flow(flow: Flow, sizes: Sequence[Shape] = ()) -> Plan:
    """The calls of a run that are worth a box, and every tensor that goes from one to another.

    What a module of ``torch.nn`` does inside is not shown: it is one box. Where a tensor comes out of several calls as
    the same object (an ``nn.Identity``, a dropout in eval mode), the latest one is taken for where it comes from.
    `sizes` are the shapes of the tensors in the example, used where each of them is an input of the run.
    """
    inputs = sorted(number for number, name in flow.sources.items() if name.startswith("input"))
    known = dict(zip(inputs, sizes, strict=True)) if len(inputs) == len(sizes) else {}
    return _Reader(flow, known).read()


class _Reader:
    def __init__(self, flow: Flow, sizes: dict[int, Shape]) -> None:
        self.flow = flow
        self.sizes = sizes
        self.plan = Plan([], [], flowing=True)
        self.page = self.plan.add("page", "", "", -1)
        self.maker: dict[int, tuple[Item, Shape | None]] = {}
        self.sources: dict[tuple[int, int], Item] = {}
        self.children: defaultdict[int | None, list[int]] = defaultdict(list)
        self.strangers: set[int] = set()
        self.state: dict[str, Shape | None] = {}

    def read(self) -> Plan:
        for call in self.flow.calls[:1]:
            self.state = {name: shape_of(tensor) for name, tensor in state_of(call.module)}
        for number, call in enumerate(self.flow.calls):
            self.children[call.parent].append(number)
        for number in self.children[None]:
            self.visit(number, self.page)
        self.results(self.children[None])
        if self.strangers:
            came = counted(len(self.strangers), "tensor")
            self.plan.notes.append(f"{came} came from where the run was not followed; no line shows what uses them")
        return self.plan

    def visit(self, number: int, parent: Item) -> None:
        call = self.flow.calls[number]
        item = self.plan.add(call.kind, call.path, call.operation, parent.number, call.module)
        item.call, item.number_of_call, item.shapes = call.call, number, call.shapes
        self.plan.calls[call.path] += 1
        inside = () if call.elementary else self.children[number]
        if not inside:
            self.wires(call, item)
            for made, shape in zip(call.outputs, call.shapes, strict=True):
                self.maker[made] = item, shape
            return
        for child in inside:
            self.visit(child, item)
        self.unseen(call, item)

    def wires(self, call: Call, item: Item) -> None:
        for taken in dict.fromkeys(call.inputs):
            found = self.found(taken, item.parent)
            if found is None:
                self.strangers.add(taken)
            else:
                self.plan.wires.append(Wire(found[0].number, item.number, found[1]))

    def found(self, taken: int, parent: int) -> tuple[Item, Shape | None] | None:
        """The item that a tensor comes from, as seen by one that uses it."""
        return self.maker.get(taken) or self.source(taken, parent) or self.hidden(taken, parent)

    def hidden(self, taken: int, parent: int) -> tuple[Item, Shape | None] | None:
        """A tensor that was made where no call is seen, from others that are known."""
        origins = self.flow.unseen.get(taken)
        if not origins:
            return None
        maker = self.plan.add("unseen", "a tensor", "not seen", parent)
        self.maker[taken] = maker, None
        for origin in origins:
            found = self.found(origin, parent)
            if found is None:
                self.strangers.add(origin)
            else:
                self.plan.wires.append(Wire(found[0].number, maker.number, found[1]))
        return self.maker[taken]

    def source(self, taken: int, parent: int) -> tuple[Item, Shape | None] | None:
        """Where a tensor comes from that no call made: an input stands above the model, a parameter by its user."""
        name = self.flow.sources.get(taken)
        if name is None:
            return None
        is_input = name.startswith("input")
        kind = "input" if is_input else "constant" if name.startswith("constant") else "parameter"
        where = 0 if is_input else parent
        shape = self.sizes.get(taken) if is_input else self.state.get(name)
        if (taken, where) not in self.sources:
            source = self.sources[taken, where] = self.plan.add(kind, name, kind, where)
            source.shapes = () if shape is None else (shape,)
        return self.sources[taken, where], shape

    def unseen(self, call: Call, item: Item) -> None:
        """What comes out of a module although nothing seen in it, and nothing that went in, is that tensor."""
        for made, shape in zip(call.outputs, call.shapes, strict=True):
            if self.found(made, item.number) is None:
                maker = self.plan.add("unseen", f"{call.path}: a tensor", "not seen", item.number, call.module)
                maker.shapes = (shape,)
                self.maker[made] = maker, shape

    def results(self, roots: list[int]) -> None:
        """One item for all that the model returns."""
        made = [
            pair
            for root in roots
            for pair in zip(self.flow.calls[root].outputs, self.flow.calls[root].shapes, strict=True)
        ]
        if made:
            output = self.plan.add("output", "output", "output", 0)
            output.shapes = tuple(shape for _, shape in dict(made).items())
            for number, shape in dict(made).items():
                found = self.found(number, 0)
                if found is not None:
                    self.plan.wires.append(Wire(found[0].number, output.number, shape))
