"""Insert: put interjections into a graph, as nodes that call a module."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from byname.errors import InterjectionError
from byname.model.items import tensors_in
from byname.reading.quiet import dynamo_skip
from byname.rewriting.clone import HELD
from byname.rewriting.match import changes
from byname.rewriting.trace_record import Record, Trace, passed
from byname.text import note_on
from byname.watch.boundary_edges import Entered
from byname.watch.call_gradients import Followed, Gradients, before, follow
from byname.watch.inplace import overwrite
from byname.watch.interject import (
    ForwardInterjection,
    Interjection,
    WrappedForwardBackwardInterjection,
    WrappedForwardInterjection,
)
from byname.watch.replacement import same_gradients, same_kind


class Several(nn.Module):
    """The interjection at a module that returns several values, each a node of the graph.

    Args:
        inserted: the interjection and its place.
        outputs: the result of the module, with `fx.Node` in place of values.
        inputs: the arguments of the module, likewise.
    """

    inserted: Inserted
    _is_impure = True

    def __init__(self, inserted: Inserted, outputs: Any, inputs: Any) -> None:
        super().__init__()
        self.path = inserted.path
        self.__dict__.update(inserted=inserted, outputs=_opened(outputs), inputs=_opened(inputs))

    def forward(self, values: list[Any], inputs: list[Any], begun: Any = None) -> list[Any]:
        """Return the new values, in the order of the module's values.

        Raises:
            InterjectionError: the interjection returned another structure.
        """
        places, form = pytree.tree_flatten(self.outputs)
        new = self.inserted(_filled(self.outputs, values), _filled(self.inputs, inputs), begun)
        leaves, new_form = pytree.tree_flatten(new)
        if new_form != form:
            raise InterjectionError(
                f"the interjection at `{self.path}` returns {_described(new_form)}; what it takes the place of is "
                f"{_described(form)}"
            )
        return [leaf for leaf, place in zip(leaves, places, strict=True) if place is _OPEN]


class _Open:
    """Marks the position of a value in a structure."""

    def __reduce__(self) -> str:
        return "_OPEN"


_OPEN = _Open()


class Insertion:
    """Inserts interjections into the graph of a trace.

    Args:
        trace: the trace whose graph is changed.
        keep: keeps a module as a constant under a name, and returns the name of its attribute.
    """

    def __init__(self, trace: Trace, keep: Callable[[nn.Module, str], str]) -> None:
        self._graph = trace.graph
        self._keep = keep
        self._now: dict[fx.Node, fx.Node] = {}

    def insert(self, record: Record, inserted: Inserted) -> None:
        """Call an interjection at the end of a call, after the interjections that are there already."""
        begun = self._begin(record, inserted) if inserted.with_gradients else None
        if not record.entered:
            self._after(record, inserted, begun)
        else:
            self._after_module(record, inserted, begun)

    def finish(self) -> fx.Graph:
        """Remove the `passed` marks and unused attribute reads, and return the graph."""
        for node in reversed(self._graph.nodes):
            if node.target is passed:
                node.replace_all_uses_with(node.args[0])
                self._graph.erase_node(node)
            elif node.op == "get_attr" and not node.users:
                self._graph.erase_node(node)
        return self._graph

    def _after(self, record: Record, inserted: Inserted, begun: fx.Node | None) -> None:
        origin: fx.Node = record.outputs
        node, changed = self._latest(origin), _read_instead(origin, record)
        inputs = (*origin.args, *origin.kwargs.values()) if inserted.with_inputs else ()
        args: tuple[Any, ...] = (node, inputs, begun, changed)
        while len(args) > 1 and not args[-1]:
            args = args[:-1]
        with self._graph.inserting_after(node):
            new = self._call(inserted, args)
        self._replace(origin, new, new)

    def _after_module(self, record: Record, inserted: Inserted, begun: fx.Node | None) -> None:
        """Call an interjection after a module call whose operations are in the graph; each returned value is a node."""
        origins = _nodes(record.outputs)
        if not origins:
            return
        known = record.inputs if inserted.with_inputs else ()
        nodes, given = ([self._latest(one) for one in found] for found in (origins, _nodes(known)))
        with self._graph.inserting_after(nodes[-1]):
            new = self._call(Several(inserted, record.outputs, known), (nodes, given, begun))
        at = new
        for index, origin in enumerate(origins):
            with self._graph.inserting_after(at):
                at = self._graph.call_function(operator.getitem, (new, index))
            self._replace(origin, at, new)

    def _replace(self, origin: fx.Node, new: fx.Node, reader: fx.Node) -> None:
        """Make all users of the latest version of a value use the new one, except `reader`, which computes it."""
        self._latest(origin).replace_all_uses_with(new, delete_user_cb=lambda user: user is not reader)
        self._now[origin] = new

    def _begin(self, record: Record, inserted: Inserted) -> fx.Node:
        nodes = [self._latest(one) for one in _nodes(record.inputs)]
        assert record.first is not None
        with self._graph.inserting_before(record.first):
            return self._call(Begun(inserted.path), tuple(nodes))

    def _call(self, module: Inserted | Several | Begun, args: tuple[Any, ...]) -> fx.Node:
        name = "".join(mark if mark.isalnum() else "_" for mark in module.path)
        what = "begun" if isinstance(module, Begun) else "interjected"
        key = self._keep(module, f"{name}_{what}")
        return self._graph.create_node("call_module", f"{HELD}.{key}", args, {}, f"{name}_{what}")

    def _latest(self, node: fx.Node) -> fx.Node:
        return self._now.get(node, node)


def _read_instead(origin: fx.Node, record: Record) -> fx.Node | None:
    """Return the input that a call changed in place, if the model reads that input later instead of the result."""
    first = origin.args[0] if origin.args else None
    if record.kind != "operation" or not isinstance(first, fx.Node) or not changes(origin, record):
        return None
    return first if not origin.users or any(user is not origin for user in first.users) else None


def _nodes(values: Any) -> list[fx.Node]:
    return [one for one in pytree.tree_leaves(values) if isinstance(one, fx.Node)]


def _opened(values: Any) -> Any:
    """Return values with `_OPEN` in place of nodes."""
    return pytree.tree_map(lambda one: _OPEN if isinstance(one, fx.Node) else one, values)


def _filled(opened: Any, values: list[Any]) -> Any:
    remaining = iter(values)
    return pytree.tree_map(lambda one: next(remaining) if one is _OPEN else one, opened)


def _described(form: pytree.TreeSpec) -> str:
    return "one value" if form.is_leaf() else f"a {form.type.__name__} of {form.num_leaves} values"


class Inserted(nn.Module):
    """A place of a rewritten model, with its interjection; the graph calls it as a module.

    Args:
        path: the place.
        module: the module called; None for an operation.
        interjection: shared, not copied.
    """

    interjection: Interjection
    module: nn.Module | None
    _is_impure = True  # so that torch.fx does not remove it when its value is unused

    def __init__(self, path: str, module: nn.Module | None, interjection: Interjection) -> None:
        super().__init__()
        self.path = path
        self.with_inputs = isinstance(interjection, WrappedForwardInterjection)
        self.with_gradients = isinstance(interjection, WrappedForwardBackwardInterjection)
        lasting: list[Followed] = []
        self.__dict__.update(module=module, interjection=interjection, lasting=lasting)  # not registered as children

    def forward(
        self, value: Any, inputs: Sequence[Any] = (), entered: Entered | None = None, changed: Any = None
    ) -> Any:
        """Return the value, or the interjection's replacement for it.

        Args:
            value: the call's result.
            inputs: the call's arguments, if the interjection takes them.
            entered: the result of `Begun`, if the interjection takes the gradients.
            changed: the input that the call changed in place, if the model reads it later.
        """
        if entered is not None:
            self._await_gradients(value, entered)
        new = self._process(value, tuple(inputs))
        if new is None or new is value:
            return value
        same_kind(self.path, value, new)
        if changed is not None and changed is value:
            overwrite(changed, new)
            return changed
        return new

    def _process(self, value: Any, inputs: tuple[Any, ...]) -> Any:
        interjection: Any = self.interjection
        try:
            if self.with_inputs:
                return interjection.process(self.path, self.module, inputs, value)
            if isinstance(interjection, ForwardInterjection):
                return interjection.process(self.path, self.module, value)
            return interjection(self.path, self.module, value)
        except Exception as error:
            note_on(error, f"byname: at `{self.path}`")
            raise

    @dynamo_skip
    def _await_gradients(self, value: Any, entered: Entered) -> None:
        """Call the interjection's ``process_backward`` when the gradients of this call are known."""
        outputs = [tensor for _, tensor in tensors_in(value)]
        followed = follow(entered, outputs, self._gradients)
        if followed is not None and followed.lasting:
            for earlier in self.__dict__["lasting"]:
                earlier.remove()
            self.__dict__["lasting"] = [followed]

    def _gradients(self, inputs: Gradients, outputs: Gradients) -> Gradients | None:
        interjection: Any = self.interjection
        try:
            new = interjection.process_backward(self.path, self.module, inputs, outputs)
            if new is not None:
                same_gradients(self.path, inputs, new)
        except Exception as error:
            note_on(error, f"byname: in the backward of `{self.path}`")
            raise
        return None if new is None else tuple(new)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lasting": []}

    def extra_repr(self) -> str:
        """Return the place and the interjection's name, for ``print(model)``."""
        named = getattr(self.interjection, "__name__", type(self.interjection).__name__)
        return f"{self.path}: {named}"


class Begun(nn.Module):
    """Notes the inputs of the call at a place; the graph calls it when that call begins, if gradients are requested."""

    _is_impure = True

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    @dynamo_skip
    def forward(self, *inputs: Any) -> Entered | None:
        """Return the noted inputs of the call, from which its gradients are found; None if grad mode is off."""
        if not torch.is_grad_enabled():
            return None
        return before([tensor for _, tensor in tensors_in(inputs)])
