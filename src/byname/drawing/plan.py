"""Plan: the items to draw, from the modules or from one run; the wires between them; and the marks of attachments."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from torch import nn

from byname.model.call_graph import Flow, ModelCall
from byname.model.module_tree import children_of, join_path, unwrap_module
from byname.model.operations import MOVES
from byname.reading.modules import parameters_in, registered, state_of
from byname.reading.quiet import DisableTorchFunction
from byname.table import counted
from byname.tracing.tensor_ids import shape_of
from byname.watch.hooks import attachments_of

Shape = tuple[int, ...]

CALLED = ("module", "operation")
"""The kinds of items that are calls; items of other kinds are sources or targets of tensors."""


@dataclass(slots=True)
class EqualItems:
    """Equal neighbours, drawn as the first of them; wires to the next are pairs (from, to) of items of the first."""

    groups: list[list[int]]
    wires: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True)
class DrawnItem:
    """One thing to draw. Path, operation, shapes, marks, texts and size are those of the box that is drawn for it.

    Attributes:
        number: its index in `Plan.items`.
        kind: "page" (contains everything), "module", "operation", "input", "output", "parameter", "constant", "unseen"
            (a tensor that no observed call made) or "repeat" (a sequence of items that repeats).
        parent: the number of the item around it, -1 for the page.
        module: the module called, or the one that ran the operation.
        call: the number of earlier calls of the same path.
        number_of_call: its index in the flow; None if the item is no call.
        same: the first path of the module, if the item is a further place of it.
        run: the repetitions, if the item is the first of several.
        header: the width of its title if the box is open.
        label: the width of the text under the box.
        shade: the size of its shadow.
    """

    number: int
    kind: str
    path: str
    operation: str
    parent: int
    module: nn.Module | None = None
    call: int = 0
    number_of_call: int | None = None
    shapes: tuple[Shape, ...] = ()
    children: list[int] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    same: str | None = None
    run: EqualItems | None = None
    title: str = ""
    subtitle: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    header: float = 0.0
    label: float = 0.0
    shade: float = 0.0


@dataclass(frozen=True, slots=True)
class Wire:
    """A tensor that goes from one item to another, `via` operations that are not drawn, with its shape on arrival."""

    source: int
    target: int
    shape: Shape | None
    via: tuple[str, ...] = ()


@dataclass(slots=True)
class Plan:
    """The items and wires of a picture, drawn or not.

    Attributes:
        flowing: whether the wires are known; without an example they are not.
        notes: sentences about things that the picture does not show.
        twins: for each item of a later repetition, the item of the first one that is drawn instead.
        calls: the number of calls of each place.
    """

    items: list[DrawnItem]
    wires: list[Wire]
    flowing: bool
    notes: list[str] = field(default_factory=list)
    twins: dict[int, int] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, path: str, operation: str, parent: int, module: nn.Module | None = None) -> DrawnItem:
        item = DrawnItem(len(self.items), kind, path, operation, parent, module)
        self.items.append(item)
        if parent >= 0:
            self.items[parent].children.append(item.number)
        return item

    def local(self, item: DrawnItem) -> str:
        """Return the path of an item within the module around it."""
        around = self.items[item.parent]
        while around.kind == "repeat":
            around = self.items[around.parent]
        return item.path.removeprefix(f"{around.path}." if around.path else "")

    def inside(self, number: int) -> Iterator[int]:
        """Yield an item and all items inside it, each before its children."""
        waiting = [number]
        while waiting:
            one = waiting.pop()
            yield one
            waiting += reversed(self.items[one].children)

    def above(self, number: int) -> Iterator[int]:
        """Yield an item, the item around it, and so on up to the page."""
        while number >= 0:
            yield number
            number = self.items[number].parent


def read_flow(flow: Flow, sizes: Sequence[Shape] = ()) -> Plan:
    """Return a plan of the calls of a run, and of the tensors that go from one call to another.

    A leaf module is one item without contents. If several calls return the same tensor object, as an ``nn.Identity`` or
    a dropout in eval mode does, the tensor comes from the latest of them. The `sizes` are the shapes of the tensors in
    the example; they are used if all of these tensors are inputs of the run.
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
        self.maker: dict[int, tuple[DrawnItem, Shape | None]] = {}
        self.sources: dict[tuple[int, int], DrawnItem] = {}
        self.children: defaultdict[int | None, list[int]] = defaultdict(list)
        self.untraced: set[int] = set()
        self.state: dict[str, Shape | None] = {}

    def read(self) -> Plan:
        for call in self.flow.calls[:1]:
            self.state = {name: shape_of(tensor) for name, tensor in state_of(call.module)}
        for number, call in enumerate(self.flow.calls):
            self.children[call.parent].append(number)
        for number in self.children[None]:
            self.visit(number, self.page)
        self.results(self.children[None])
        if self.untraced:
            came = counted(len(self.untraced), "tensor")
            self.plan.notes.append(f"{came} came from code that was not traced; no line shows what uses them")
        return self.plan

    def visit(self, number: int, parent: DrawnItem) -> None:
        call = self.flow.calls[number]
        item = self.plan.add(call.kind, call.path, call.operation, parent.number, call.module)
        item.call, item.number_of_call, item.shapes = call.call, number, call.shapes
        self.plan.calls[call.path] += 1
        inside = () if call.elementary else self.children[number]
        if not inside:
            for taken in dict.fromkeys(call.inputs):
                self.wire(taken, item)
            for made, shape in zip(call.outputs, call.shapes, strict=True):
                self.maker[made] = item, shape
            return
        for child in inside:
            self.visit(child, item)
        self.unseen(call, item)

    def wire(self, taken: int, user: DrawnItem) -> None:
        """Add the wire from the origin of a tensor to an item that uses it, if the origin is known."""
        found = self.found(taken, user.parent)
        if found is None:
            self.untraced.add(taken)
        else:
            self.plan.wires.append(Wire(found[0].number, user.number, found[1]))

    def found(self, taken: int, parent: int) -> tuple[DrawnItem, Shape | None] | None:
        """Return the item that a tensor comes from, and its shape, for a user in `parent`; None if that is unknown."""
        return self.maker.get(taken) or self.source(taken, parent) or self.hidden(taken, parent)

    def hidden(self, taken: int, parent: int) -> tuple[DrawnItem, Shape | None] | None:
        """Add an item for a tensor that no observed call made, if the tensors that it was made from are known."""
        origins = self.flow.unseen.get(taken)
        if not origins:
            return None
        maker = self.plan.add("unseen", "a tensor", "not seen", parent)
        self.maker[taken] = maker, None
        for origin in origins:
            self.wire(origin, maker)
        return self.maker[taken]

    def source(self, taken: int, parent: int) -> tuple[DrawnItem, Shape | None] | None:
        """Return the item for an input, parameter or constant: an input is on the page, the others by their user."""
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

    def unseen(self, call: ModelCall, item: DrawnItem) -> None:
        """Add an item for each output of a module that is neither an input nor made by an observed call inside it."""
        for made, shape in zip(call.outputs, call.shapes, strict=True):
            if self.found(made, item.number) is None:
                maker = self.plan.add("unseen", f"{call.path}: a tensor", "not seen", item.number, call.module)
                maker.shapes = (shape,)
                self.maker[made] = maker, shape

    def results(self, roots: list[int]) -> None:
        """Add one item for all tensors that the model returns."""
        calls = [self.flow.calls[root] for root in roots]
        if made := {number: shape for call in calls for number, shape in zip(call.outputs, call.shapes, strict=True)}:
            output = self.plan.add("output", "output", "output", 0)
            output.shapes = tuple(made.values())
            for number, shape in made.items():
                found = self.found(number, 0)
                if found is not None:
                    self.plan.wires.append(Wire(found[0].number, output.number, shape))


def read_tree(model: nn.Module) -> Plan:
    """Return a plan of the modules in the order of registration; a shared module is at all its places, open at one."""
    plan = Plan([], [], flowing=False, notes=["modules in the order of registration; example= shows the data flow"])
    plan.add("page", "", "", -1)
    seen: dict[int, str] = {}
    waiting: list[tuple[nn.Module, str, int]] = [(model, "", 0)]
    while waiting:
        module, path, parent = waiting.pop()
        item = plan.add("module", path, type(module).__name__, parent, module)
        if id(module) in seen:
            item.same = seen[id(module)]
            continue
        seen[id(module)] = path
        children = [(join_path(path, name), one) for name, one in children_of(module).items() if one is not None]
        waiting += [(unwrap_module(child)[0], name, item.number) for name, child in reversed(children)]
    for item in plan.items:
        item.children.sort()
    return plan


def fold(plan: Plan) -> None:
    """Remove from the plan operations with one input that only move or reshape; their names go into ``via`` of wires.

    An operation with a mark stays, and so do the operations of a box that has nothing else to show.
    """
    incoming: defaultdict[int, list[Wire]] = defaultdict(list)
    outgoing: defaultdict[int, list[Wire]] = defaultdict(list)
    for wire in plan.wires:
        incoming[wire.target].append(wire)
        outgoing[wire.source].append(wire)
    gone: dict[int, Wire] = {}
    for item in plan.items:
        plumbing = item.kind == "operation" and item.operation in MOVES and not item.marks
        if plumbing and len(incoming[item.number]) == 1 and outgoing[item.number] and _has_company(plan, item.parent):
            (gone[item.number],) = incoming[item.number]
    plan.wires = [_longer(plan, wire, gone) for wire in plan.wires if wire.target not in gone]
    for parent in {plan.items[number].parent for number in gone}:
        item = plan.items[parent]
        item.children = [child for child in item.children if child not in gone]


def _has_company(plan: Plan, parent: int) -> bool:
    """Return whether a box contains more than parameters and operations that only move or reshape elements."""
    inside = (plan.items[child] for child in plan.items[parent].children)
    return any(child.kind == "module" or child.operation not in MOVES for child in inside if child.kind != "parameter")


def _longer(plan: Plan, wire: Wire, gone: dict[int, Wire]) -> Wire:
    """Return the wire from the item before the removed operations, with their names."""
    source, via = wire.source, list(wire.via)
    while source in gone:
        via.append(plan.items[source].operation)
        source = gone[source].source
    return Wire(source, wire.target, wire.shape, tuple(reversed(via)))


def marks_of(model: nn.Module) -> dict[str, list[str]]:
    """Return the names of the attached callbacks, by place. The place of an operation is known once it has run."""
    marks: defaultdict[str, list[str]] = defaultdict(list)
    for one in attachments_of(model):
        for path in one.paths:
            marks[path].append(one.label)
    return dict(marks)


def add_marks(plan: Plan, marks: Mapping[str, Sequence[str]]) -> None:
    """Add each mark to the items of its path, or to the item around a place that has none of its own.

    The rest of the path is then put before the mark: ``forward.scores: probe`` on the box of the attention.
    """
    places: defaultdict[str, list[DrawnItem]] = defaultdict(list)
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


def traits(item: DrawnItem) -> Hashable:
    """Return a key of an item: its class, settings, shapes of parameters, output shapes and marks."""
    own: Hashable = None
    if item.kind == "module" and item.module is not None:
        with DisableTorchFunction():
            state = [*registered(item.module, "_parameters"), *registered(item.module, "_buffers")]
            own = (type(item.module), settings(item.module), tuple(shape_of(one) for one in state))
    return item.operation, own, item.shapes, tuple(item.marks), item.same is not None


def settings(module: nn.Module) -> str:
    """Return the ``extra_repr`` of a module of PyTorch, such as ``3, 8, kernel_size=(3, 3)``; empty for other modules.

    No code of the user runs.
    """
    if not type(module).__module__.startswith("torch.nn."):
        return ""
    try:
        return module.extra_repr()
    except Exception:  # noqa: BLE001 - a modified module may lack attributes that its class prints; draw it anyway
        return ""


def elements(module: nn.Module) -> int:
    """Return the number of elements of the parameters of a module and its submodules, each parameter once."""
    shapes = (shape_of(one) for one in parameters_in(module))
    return sum(prod(shape) for shape in shapes if shape is not None)
