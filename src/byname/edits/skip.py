"""Skip: modules of a model that are not computed; something else takes the place of what they return."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from byname.errors import BadArgumentError, InterjectionError
from byname.model.methods import method_of
from byname.model.returns import items_returned, returned_by
from byname.model.where import meaning_of, unwrapped
from byname.reading.modules import modules_in
from byname.reading.objects import attributes_of, namespace_of, parents_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import is_tensor
from byname.text import note_on
from byname.watch.attach import attach
from byname.watch.attachment import Running
from byname.watch.handle import Handle
from byname.watch.hooks import ForwardStandIn, Hooks
from byname.watch.replace import modules_selected


def skip(model: nn.Module, where: Any, value: Any = "input") -> Handle:
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

    The hooks of the module run, and what is attached to it is told of the other value. A copy of the model is one with
    nothing skipped. A layer of `transformers` puts zeros into its part of a cache of keys and values, because the model
    asks the cache how many positions there are.

    Args:
        model: any module.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these; modules alone.
        value: ``"input"``, the module's first argument (positional, else the first keyword); a tensor, of which each
            call gets a copy; or a function ``f(*args, **kwargs)`` of the module's arguments.

    Raises:
        NoMatchError: nothing matches.
        BadArgumentError: an argument is invalid; or the source of a module says that it returns a tuple or dict, and
            `value` is the input. Where the source does not tell, the notes of the handle say so.
    """
    root = unwrapped(model)
    if not (is_tensor(value) or callable(value) or (type(value) is str and value == "input")):
        kind = f"of type {type(value).__name__}" if type(value) is not str else repr(value)[:40]
        raise BadArgumentError(f"value= is 'input', a tensor, or a function of the module's arguments; this is {kind}")
    modules = _modules(root, where)
    handle = attach(model, where, _told, enabled=False)
    if type(value) is str:
        _note_what_is_open(root, modules, handle)
    for path, module in modules.items():
        handle.add(_Skipped(path, module, value))
    return handle.switched(True)


def _told(event: object) -> None:
    """Keep the value; the attachment is there for what it says of modules that do not run."""


def _modules(root: nn.Module, where: Any) -> dict[str, nn.Module]:
    """Return the modules that are meant, by path."""
    meaning, selectors = meaning_of(where, root)
    for spot in meaning.spots:
        if spot.kind != "module" or spot.items or spot.gradient:
            raise BadArgumentError(
                f"`{spot.full}` is not the output of a module, and cannot be skipped; byname.patch(model, where, "
                "value) puts another value in the place of the one there"
            )
    found = {spot.path: spot.module for spot in meaning.spots}
    for selector in selectors:
        found.update((path or "forward", module) for path, module in modules_selected(root, selector).items())
    return found


def _note_what_is_open(root: nn.Module, modules: dict[str, nn.Module], handle: Handle) -> None:
    """Refuse modules that return containers, and note of which it is not known."""
    unknown = []
    for path, module in modules.items():
        kind = returned_by(module)
        if kind in ("tuple", "dict"):
            raise BadArgumentError(
                f"`{path}` is a {type(module).__name__}, which returns a {kind}; its first argument cannot take the "
                f"place of that. Give value=, a function of its arguments {_example(module, kind)}"
            )
        if not kind:
            unknown.append(path)
    for path in unknown:
        handle.note(_open(path))
    if unknown:
        handle.add(_on_failure(root, [_open(path) for path in unknown]))


def _example(module: nn.Module, kind: str) -> str:
    """Return an example of a function that may take the place of a module."""
    function = method_of(module, "forward")
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount] if function is not None else ()
    name, count = names[0] if names else "x", items_returned(module)
    if kind == "dict":
        return "that returns such a dict"
    items = ", ".join([name, *["None"] * ((count or 2) - 1)])
    return f"such as lambda {name}, *args, **kwargs: ({items}{',' if count == 1 else ''})" + (
        "" if count else ", with as many items as it returns"
    )


def _open(path: str) -> str:
    return (
        f"`{path}` is skipped and gives its first argument; its source does not say that it returns a tensor. If it "
        "returns a tuple, give value="
    )


def _on_failure(root: nn.Module, sentences: list[str]) -> Hooks:
    """Return hooks that add sentences to an error of the model's forward."""

    def failed(*_: Any) -> None:
        error = sys.exception()
        if isinstance(error, Exception):
            for sentence in sentences:
                note_on(error, f"byname: {sentence}")

    hooks = Hooks(root, Running(root, _told))
    hooks.after(root, failed, always=True)
    return hooks


class _Skipped(ForwardStandIn):
    """What is called in the place of a module's forward.

    Args:
        path: the place.
        module: the module.
        value: what it returns: ``"input"``, a tensor, or a function.
    """

    def __init__(self, path: str, module: nn.Module, value: Any) -> None:
        super().__init__(module)
        self._path = path
        self._value = value

    def instead(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what takes the place of the module's output."""
        module = self._module()
        if module is None:
            return self._given(args, kwargs)
        return with_cache_filled(module, (*args, *kwargs.values()), partial(self._given, args, kwargs))

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = self._value
        if isinstance(value, Tensor):
            return value.clone()  # a function in place may follow
        if callable(value):
            return value(*args, **kwargs)
        for one in (*args, *kwargs.values()):
            return one
        raise InterjectionError(f"`{self._path}` is skipped, and was called without an argument that it could give")


def with_cache_filled(module: nn.Module, given: Sequence[Any], compute: Callable[[], Any]) -> Any:
    """Return what a function returns that takes the place of a module, and put zeros into the cache of the module.

    Args:
        module: the module.
        given: its arguments.
        compute: the function. Where it fills the cache itself, the cache stays so.
    """
    before = [(cache, layer, _length(cache, layer)) for cache in _caches(given) for layer in _layers(module, cache)]
    result = compute()
    states = next((one for one in given if is_tensor(one) and one.ndim == 3), None)
    if states is not None:
        for cache, layer, length in before:
            if _length(cache, layer) == length:
                _fill(cache, layer, states)
    return result


def _caches(given: Sequence[Any]) -> Iterator[Any]:
    """Yield the caches of `transformers` among the arguments."""
    for one in given:
        written_in = (namespace_of(kind).get("__module__") for kind in parents_of(type(one)))
        if "transformers.cache_utils" in written_in:
            held = attributes_of(one)
            cache = held.get("self_attention_cache", one)
            if type(attributes_of(cache).get("layers")) is list:
                yield cache


def _layers(module: nn.Module, cache: Any) -> list[int]:
    """Return the layers of a cache that a module fills: those with keys, or that the cache makes once it gets them."""
    numbers = {attributes_of(one).get("layer_idx") for one in modules_in(module)}
    return sorted(number for number in numbers if type(number) is int and _has_keys(cache, number))


def _has_keys(cache: Any, number: int) -> bool:
    layers = cache.layers
    if number >= len(layers):
        return attributes_of(cache).get("layer_class_to_replicate") is not None
    return "keys" in attributes_of(layers[number])


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
