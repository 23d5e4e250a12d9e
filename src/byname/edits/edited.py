"""Edited: a second view of a model, with edits, which shares the parameters and buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeVar

from torch import nn

from byname.errors import BadArgumentError
from byname.model.methods import content_of
from byname.model.module_tree import is_script
from byname.model.where import unwrapped
from byname.reading.modules import modules_in, state_of
from byname.reading.objects import attributes_of
from byname.tracing.preserve import distinct_tensors
from byname.watch.attachment import Attachment
from byname.watch.handle import Handle
from byname.watch.hooks import attachments_of

M = TypeVar("M", bound=nn.Module)


def edited(model: M, *edits: Callable[[M], Handle]) -> M:
    """Return a second view of a model with edits; the model itself is not touched.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        >>> view = byname.edited(model, lambda one: byname.ablate(one, "0", features=0))
        >>> view[0].weight is model[0].weight
        True
        >>> x = torch.ones(1, 2)
        >>> view(x)[0, 0].item(), torch.equal(view(x)[0, 1], model(x)[0, 1])
        (0.0, True)

    Parameters, buffers and other tensors that the modules hold are the same objects, so to train one is to train the
    other. The modules themselves, their training flags, attributes and hooks are the view's own, as in a deep copy;
    what is attached to the model is not attached to the view. The edits last as long as the view.

    Args:
        model: any module.
        edits: functions ``f(view) -> Handle``, applied in order, such as ``lambda view: byname.skip(view, "h.3")``.

    Raises:
        BadArgumentError: an edit changes the model itself, or does not return a handle; or the model cannot be copied,
            or holds a function, such as a hook, that has one of its modules as a variable.
    """
    root = unwrapped(model)
    if wrong := [type(one).__name__ for one in edits if not callable(one)]:
        raise BadArgumentError(f"an edit is a function such as lambda view: byname.skip(view, 'h.3'), not {wrong[0]}")
    view, done = view_of(model), list[Handle]()
    before = _changes_of(root)
    try:
        for make in edits:
            done.append(checked_handle(make(view)))
            if before != _changes_of(root):
                raise BadArgumentError(
                    "an edit changes the view that it is called with; this one changes the model itself"
                )
    except BaseException:
        for handle in done[::-1]:
            handle.remove_silently()
        raise
    return view


def _changes_of(model: nn.Module) -> list[tuple[int, list[Attachment]]]:
    """Return what an edit may change: the modules in a model, each with what is attached to it."""
    return [(id(one), attachments_of(one)) for one in modules_in(model)]


def view_of(model: M, shared: Iterable[object] = ()) -> M:
    """Return a deep copy of a model that shares its tensors, its scripted modules and some further objects.

    Raises:
        BadArgumentError: the model cannot be copied.
    """
    modules = modules_in(model)
    held = [value for module in modules for value in attributes_of(module).values()]
    scripts = [module for module in modules if is_script(module) and module is not model]
    memo: dict[int, Any] = {id(one): one for one in (*distinct_tensors(held), *scripts, *shared)}
    known = {id(module) for module in modules}
    try:
        for own in map(attributes_of, modules):
            copied = [value for name, value in own.items() if name != "_compiled_call_impl"]
            _refuse_closures(copied, known)
        view = copy.deepcopy(model, memo)
    except (TypeError, RuntimeError, AttributeError) as error:
        raise BadArgumentError(
            f"this {type(model).__name__} cannot be copied, and a view of it is a copy: {error}. Attach the edits to "
            "the model itself, and remove them afterwards"
        ) from error
    mine, theirs = list(state_of(view)), list(state_of(model))
    if len(mine) != len(theirs) or any(one is not other for (_, one), (_, other) in zip(mine, theirs, strict=True)):
        raise BadArgumentError(f"a copy of this {type(model).__name__} does not share its parameters and buffers")
    return view


def _refuse_closures(values: list[Any], known: set[int]) -> None:
    """Refuse functions whose closures hold modules of the model: a copy would go on with the original modules."""
    seen: set[int] = set()
    while values:
        value = values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is FunctionType:
            for held in map(content_of, value.__closure__ or ()):
                owner = held.__self__ if type(held) is MethodType else held
                if id(owner) in known:
                    raise TypeError(
                        f"a module holds the function {value.__qualname__}, whose closure has a {type(owner).__name__} "
                        "of the model, and the copy would use the original"
                    )
        elif isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list | tuple | set):
            values += value
        elif isinstance(value, partial):
            values += [value.func, *value.args, *value.keywords.values()]


def checked_handle(handle: Any) -> Handle:
    if not isinstance(handle, Handle):
        raise BadArgumentError(
            "an edit must be a function of the model that returns a handle, such as lambda model: byname.skip(model, "
            f"'h.3'); this one returned {type(handle).__name__}"
        )
    return handle
