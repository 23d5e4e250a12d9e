"""Skip: modules of a model that are not computed; another value replaces their output."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from byname.edits.active_steps import ActiveSteps, why_unused
from byname.edits.patch import Edit, edit
from byname.edits.selection import SelectedPart, Selection
from byname.errors import BadArgumentError, InterjectionError
from byname.model.methods import function_of
from byname.model.where import modules_of, parts_of, unwrapped
from byname.reading.modules import modules_in
from byname.reading.objects import attributes_of, namespace_of, parents_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import is_tensor
from byname.source.code import Function, definition_of, original_code, statements_in
from byname.text import note_on
from byname.watch.attach import attach
from byname.watch.attachment import Attachment, Event
from byname.watch.forwards import do_nothing
from byname.watch.handle import Handle
from byname.watch.hooks import ALWAYS, Hooks, MethodOverride


def skip(model: nn.Module, where: Any, value: Any = "input", *, channels: Any = None, steps: Any = None) -> Handle:
    """Leave modules of a model out of the computation.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> with byname.skip(model, "0"):
        ...     model(torch.tensor([[-1.0, 2.0]]))
        tensor([[0., 2.]])

        What a module returns that is more than a tensor has to be given:

        >>> lstm = torch.nn.LSTM(2, 2)
        >>> with byname.skip(lstm, "forward", lambda x: (x, None)):
        ...     lstm(torch.ones(1, 2))
        (tensor([[1., 1.]]), None)

    The hooks of the module run, and callbacks attached to it get the other value. A copy of the model skips nothing.
    A layer of `transformers` puts zeros into its part of a cache of keys and values, because the model asks the cache
    how many positions there are.

    Args:
        model: any module.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these; modules alone.
        value: ``"input"``, the module's first argument (positional, else the first keyword); a tensor, of which each
            call gets a copy; or a function ``f(*args, **kwargs)`` of the module's arguments.
        channels: the channels of its output in whose place `value` stands, as in `byname.patch`. The module is then
            computed for the others.
        steps: as in `byname.patch`; in the other steps the module is computed.

    Raises:
        NoMatchError: nothing matches.
        BadArgumentError: an argument is invalid; or the source of a module says that it returns a tuple or dict, and
            `value` is the input. Where the source does not tell, the notes of the handle say so.
    """
    root = unwrapped(model)
    where = parts_of(where, root)
    if not (is_tensor(value) or callable(value) or (type(value) is str and value == "input")):
        kind = f"of type {type(value).__name__}" if type(value) is not str else repr(value)[:40]
        raise BadArgumentError(f"value= takes 'input', a tensor, or a function of the module's arguments, not {kind}")
    modules, counted = modules_of(root, where), ActiveSteps.of(root, steps)
    if channels is not None:
        _tensors_alone(modules, lambda *_: " and has no channels; use patch(..., channels=) for an item of it")
        return _some_channels(model, where, value, Selection(channels=channels), counted)
    handle = attach(model, where, do_nothing, enabled=False)  # which says of modules that do not run that they do not
    if type(value) is str and (unknown := _tensors_alone(modules, _needs_value)):
        sentences = [_OPEN.format(path) for path in unknown]
        for sentence in sentences:
            handle.note(sentence)
        handle.add(_on_failure(root, sentences))
    used: set[str] = set()
    if counted is not None:
        handle.add(counted)
        handle.requested.seen = partial(why_unused, used, counted.words)
    for path, module in modules.items():
        handle.add(_Skipped(path, module, value, counted, used))
    return handle.switched(True)


def _tensors_alone(modules: dict[str, nn.Module], why: Callable[[nn.Module, str], str]) -> list[str]:
    """Refuse modules that return containers; return the paths of those that are not known to return a tensor."""
    kinds = {path: returned_by(module) for path, module in modules.items()}
    for path, kind in kinds.items():
        if kind in ("tuple", "dict"):
            module = modules[path]
            raise BadArgumentError(f"`{path}` is a {type(module).__name__}, which returns a {kind}{why(module, kind)}")
    return [path for path, kind in kinds.items() if not kind]


def _needs_value(module: nn.Module, kind: str) -> str:
    """Return why a container needs a value, with an example of a function that may take the place of the module."""
    function = function_of(module, "forward")
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount] if function is not None else ()
    name, count = names[0] if names else "x", items_returned(module)
    items = ", ".join([name, *["None"] * ((count or 2) - 1)]) + "," * (count == 1)
    many = "" if count else ", with as many items as it returns"
    example = (
        f"such as lambda {name}, *args, **kwargs: ({items}){many}" if kind == "tuple" else "that returns such a dict"
    )
    return f"; its first argument cannot replace that. Give value=, a function of its arguments {example}"


_OPEN = (
    "`{}` is skipped and returns its first argument; its source does not show that it returns a tensor. If it returns "
    "a tuple, give value="
)


def _some_channels(model: nn.Module, where: Any, value: Any, channels: Selection, steps: ActiveSteps | None) -> Handle:
    """Replace some channels of what modules return, and have these computed."""

    def given(path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if steps is None or steps.is_active(path):
            one = _given(path, value, args, kwargs)
            return (one.clone() if is_tensor(one) else one,)  # the module may change it in place
        return None

    def made(edit: Edit, event: Event, part: SelectedPart) -> Tensor:
        (one,) = event.before
        if not is_tensor(one):
            raise InterjectionError(f"`{event.path}` is skipped, but its replacement is not a tensor; give value=")
        return edit.fitting(event, part, one, whole=True)

    return edit(model, where, made, channels, steps=steps, before=given)


def _on_failure(root: nn.Module, sentences: list[str]) -> Hooks:
    """Return hooks that add sentences to an error of the model's forward."""

    def failed(*_: Any) -> None:
        error = sys.exception()
        if isinstance(error, Exception):
            for sentence in sentences:
                note_on(error, f"byname: {sentence}")

    hooks = Hooks(Attachment(root, do_nothing))
    hooks.call(ALWAYS, root, failed)
    return hooks


class _Skipped(MethodOverride):
    """A replacement for the forward of a module, which returns a value in some steps, or in all."""

    def __init__(self, path: str, module: nn.Module, value: Any, steps: ActiveSteps | None, used: set[str]) -> None:
        super().__init__(module)
        self._path = path
        self._value = value
        self._steps = steps
        self._used = used

    def call_replacement(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._steps is not None and not self._steps.is_active(self._path):
            return self.call_original(args, kwargs)
        self._used.add(self._path)
        module = self._module()
        before = [] if module is None else [*_cache_layers(module, (*args, *kwargs.values()))]
        result = _given(self._path, self._value, args, kwargs)
        states = next((one for one in (*args, *kwargs.values()) if is_tensor(one) and one.ndim == 3), None)
        for cache, layer, length in before:
            if states is not None and _length(cache, layer) == length:  # else the value has filled it
                _fill(cache, layer, states)
        return result


def _given(path: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(value, Tensor):
        return value.clone()  # a function in place may follow
    if callable(value):
        return value(*args, **kwargs)
    for one in (*args, *kwargs.values()):
        return one
    raise InterjectionError(f"`{path}` is skipped, but was called without an argument to return; give value=")


def _cache_layers(module: nn.Module, given: Sequence[Any]) -> Iterator[tuple[Any, int, int]]:
    """Yield the layers that a module fills of caches of `transformers` among the arguments, each with its length."""
    numbers = {number for one in modules_in(module) if type(number := attributes_of(one).get("layer_idx")) is int}
    for one in given:
        written_in = (namespace_of(kind).get("__module__") for kind in parents_of(type(one)))
        if "transformers.cache_utils" in written_in:
            cache = attributes_of(one).get("self_attention_cache", one)
            held: dict[str, Any] = attributes_of(cache)
            layers, makes = held.get("layers", ()), held.get("layer_class_to_replicate")
            for number in sorted(numbers) if type(layers) is list else ():
                if "keys" in attributes_of(layers[number]) if number < len(layers) else makes is not None:
                    yield cache, number, _length(cache, number)


def _length(cache: Any, layer: int) -> int:
    return int(cache.get_seq_length(layer))


def _fill(cache: Any, layer: int, states: Tensor) -> None:
    """Put zeros into a layer of a cache; of one head with one feature, unless the cache has others already."""
    keys = attributes_of(cache.layers[layer]).get("keys") if layer < len(cache.layers) else None
    values = attributes_of(cache.layers[layer]).get("values") if keys is not None else None
    with DisableTorchFunction(), torch.no_grad():
        cache.update(_zeros(keys, states), _zeros(values, states), layer)


def _zeros(stored: Tensor | None, states: Tensor) -> Tensor:
    batch, positions, _ = states.shape
    heads, size = (1, 1) if stored is None or stored.ndim != 4 else (stored.shape[1], stored.shape[-1])
    return states.new_zeros(batch, heads, positions, size)


# What the source of a forward says of its result

Returned: TypeAlias = Literal["tuple", "dict", "tensor", ""]
"""Empty where it is not known."""

_DEEPEST = 5
"""The number of modules that are followed, one from the other."""


def returned_by(module: nn.Module, depth: int = 0) -> Returned:
    """Return the kind of value that the forward of a module returns, by its source; nothing runs.

    >>> returned_by(nn.LSTM(1, 1)), returned_by(nn.Linear(1, 1)), returned_by(nn.Sequential())
    ('tuple', 'tensor', '')
    """
    if type(module) is nn.Sequential and len(module):
        return returned_by(module[-1], depth + 1)
    definition = _definition(module)
    return "" if definition is None or depth > _DEEPEST else _Forward(module, definition, depth).returned()


def items_returned(module: nn.Module) -> int | None:
    """Return the length of the tuple that the forward of a module returns; None if its source does not show it.

    >>> items_returned(nn.LSTM(1, 1)), items_returned(nn.Linear(1, 1))
    (2, None)
    """
    definition = _definition(module)
    body = definition.body if definition else []
    returned = [one.value for one in statements_in(body) if isinstance(one, ast.Return)]
    lengths = {_tuple_length(one) for one in returned}
    return lengths.pop() if len(lengths) == 1 else None


def _tuple_length(node: ast.expr | None) -> int | None:
    """Return the number of items of a tuple as it is written; None for anything else."""
    if not isinstance(node, ast.Tuple) or any(isinstance(one, ast.Starred) for one in node.elts):
        return None
    return len(node.elts)


def _definition(module: nn.Module) -> Function | None:
    """Return the syntax tree of a module's forward; None where it has no Python code, or no source."""
    function = function_of(module, "forward")
    return None if function is None else definition_of(original_code[function.__code__])


class _Forward:
    """The source of a forward; `depth` is the number of modules that were followed to this one."""

    def __init__(self, module: nn.Module, definition: Function, depth: int) -> None:
        self._module = module
        self._definition = definition
        self._depth = depth
        self._own = list(statements_in(definition.body))
        self._seen: set[str] = set()

    def returned(self) -> Returned:
        """Return the kind: as written in a return, else as annotated, else as its variables and calls show."""
        values = [one.value for one in self._own if isinstance(one, ast.Return) and one.value is not None]
        plain = [kind for one in values if (kind := _display(one))]
        annotation = self._definition.returns
        if plain or not values:
            return plain[0] if plain else ""
        if annotation is not None and ast.unparse(annotation) in ("Tensor", "torch.Tensor"):
            return "tensor"
        return _either([self._kind(one) for one in values])

    def _kind(self, node: ast.expr) -> Returned:
        if isinstance(node, ast.IfExp):
            return _either([self._kind(node.body), self._kind(node.orelse)])
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            kinds = [self._kind(node.left), self._kind(node.right)]
            return next((kind for kind in kinds if kind), "")  # both sides are of one kind
        if isinstance(node, ast.Name) and node.id not in self._seen:
            self._seen.add(node.id)
            return _either([self._kind(one) for one in self._assigned(node.id)])
        inner = self._called(node)
        return _display(node) if inner is None else returned_by(inner, self._depth + 1)

    def _assigned(self, name: str) -> list[ast.expr]:
        assignments = [one for one in self._own if isinstance(one, ast.Assign)]
        return [one.value for one in assignments if any(_is(target, name) for target in one.targets)]

    def _called(self, node: ast.expr) -> nn.Module | None:
        function = node.func if isinstance(node, ast.Call) else None
        if not isinstance(function, ast.Attribute) or not _is(function.value, "self"):
            return None
        inner: nn.Module | None = self._module.__dict__["_modules"].get(function.attr)
        return inner


def _display(node: ast.expr) -> Returned:
    return "tuple" if isinstance(node, ast.Tuple) else "dict" if isinstance(node, ast.Dict) else ""


def _either(kinds: list[Returned]) -> Returned:
    """Return the kind of one of several values: a container if any is one, a tensor if all are."""
    containers = [kind for kind in kinds if kind in ("tuple", "dict")]
    if containers:
        return containers[0]
    return "tensor" if kinds and all(kind == "tensor" for kind in kinds) else ""


def _is(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name
