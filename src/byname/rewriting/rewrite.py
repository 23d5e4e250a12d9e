"""Rewrite: trace a model into a ``torch.fx`` graph and insert interjections into the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from byname.errors import BadArgumentError, RewriteError
from byname.model.module_tree import modules_by_path
from byname.model.where import unwrapped
from byname.rewriting.clone import Held, mirror
from byname.rewriting.match import chosen, classes_in
from byname.rewriting.outside import other_modes
from byname.rewriting.rewritten import Interjections, Recipe, Rewritten
from byname.rewriting.specialization import Arguments, default_call, depends_on, of_call
from byname.rewriting.trace_record import Trace
from byname.tracing.preserve import arguments_of
from byname.watch.hooks import Hook
from byname.watch.interject import Interjection, checked_interjection


def rewrite(
    model: nn.Module,
    where: Any,
    interjection: Interjection,
    *,
    leaf_modules: Iterable[type[nn.Module] | nn.Module | str] | type[nn.Module] | nn.Module | str = (),
    example: Any = None,
) -> torch.fx.GraphModule:
    """Return a new model with interjections in its graph, for a model that ``torch.fx`` can trace.

        >>> import torch, byname
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> doubled = byname.rewrite(model, "1", lambda name, module, value: 2 * value)
        >>> x = torch.ones(1, 2)
        >>> bool((doubled(x) == 2 * model(x)).all())
        True
        >>> doubled.get_parameter("0.weight") is model[0].weight
        True

    The model is not changed. The new model has its own modules of the same classes, which share the model's parameters
    and buffers under the same keys. It can be trained, compiled, copied, saved, and rewritten again. Moving it to
    another device or dtype moves the shared parameters: move the model first.

    Args:
        model: any module whose forward does not branch on the data of tensors.
        where: a path of a module or operation, a selector, a module class, a module of the model, or a sequence of
            these. Modules of a class given here are leaf modules: the graph does not contain their inside.
        interjection: one of the three classes of interjections, or a function ``f(name, module, value)``. Its return
            value, unless None, replaces the value. It is shared, not copied, and not part of ``state_dict``.
        leaf_modules: further leaf modules: modules, module classes, or paths. Modules of ``torch.nn`` except
            `torch.nn.Sequential`, and modules with hooks, are leaf modules anyway; their hooks run when the model runs.
        example: the arguments of one call, to trace the forward with optional arguments; as for `byname.interject`.
            Its shapes, dtypes and devices answer what the forward asks before it goes on; its data is not computed
            with, and it is not kept. Other ways to call the model are traced at their first call.

    Returns:
        The new model, a ``torch.fx.GraphModule``.

    Raises:
        RewriteError: the forward cannot be traced; the message names the statement.
        NoMatchError: a part of `where` matches nothing in the graph.
        NotAnInterjectionError: `interjection` is not an interjection.
        BadArgumentError: `leaf_modules` or `example` is invalid.
    """
    model = unwrapped(model)
    interjection = checked_interjection(interjection)
    recipe = _recipe(model, (*_leaves(leaf_modules), *classes_in(where)), model)
    call = _call(recipe, example)
    held = Held()
    traces = list(_traces(model, recipe, call, held))
    recipe.interjections.append(Interjections(chosen(where, model, traces), interjection))
    new = Rewritten(recipe, held)
    for trace in traces:
        new._byname_variants.append(recipe.finished(new, call, trace))
    new.recompile()
    return new


def _recipe(model: nn.Module, leaves: tuple[Any, ...], root: nn.Module) -> Recipe:
    """Return the spec of the new model; a model that was rewritten before keeps its interjections."""
    before: Recipe | None = None
    if isinstance(model, Rewritten):
        before = model._byname_recipe
        root = before.root
        root.training = model.training
    recipe = Recipe(mirror(root, dropped=(Hook,)))
    if before is not None:
        recipe.leaf_classes, recipe.leaf_paths = before.leaf_classes, before.leaf_paths
        recipe.interjections = list(before.interjections)
    paths = {id(module): path for path, module in modules_by_path(model).items()}
    recipe.leaf_classes += tuple(one for one in leaves if isinstance(one, type))
    recipe.leaf_paths |= {_leaf_path(one, paths, model) for one in leaves if not isinstance(one, type)}
    return recipe


def _leaves(given: Any) -> tuple[Any, ...]:
    return (given,) if isinstance(given, str | type | nn.Module) else tuple(given)


def _leaf_path(leaf: Any, paths: dict[int, str], model: nn.Module) -> str:
    if isinstance(leaf, str) and leaf in {*paths.values()}:
        return leaf
    if isinstance(leaf, nn.Module) and id(leaf) in paths:
        return paths[id(leaf)]
    named = repr(leaf) if isinstance(leaf, str) else f"an object of {type(leaf).__name__}"
    raise BadArgumentError(
        f"leaf_modules= has {named}: no class of modules, and no module or path of this {type(model).__name__}"
    )


def _call(recipe: Recipe, example: Any) -> Arguments:
    """Return the arguments of the call that is traced first."""
    signature = recipe.signature
    if example is None:
        recipe.depends = depends_on(signature, None)
        return default_call(signature)
    args, kwargs = arguments_of(example)
    try:
        call = of_call(signature, args, kwargs)
    except TypeError as wrong:
        raise BadArgumentError(f"example= does not fit the forward{signature}: {wrong}") from None
    recipe.depends = depends_on(signature, call)
    return call


def _traces(model: nn.Module, recipe: Recipe, call: Arguments, held: Held) -> Iterator[Trace]:
    """Yield the traces for the present modes of PyTorch, and for others if the forward branches on them."""
    first, *others = _with_flags(model, recipe, call, held)
    yield from (first, *others)
    for modes in other_modes(first.answers):
        with modes(), suppress(RewriteError):  # it is raised again if the model is called in these modes
            yield from [*_with_flags(model, recipe, call, held)]


def _with_flags(model: nn.Module, recipe: Recipe, call: Arguments, held: Held) -> Iterator[Trace]:
    """Yield the trace for the present training flags; if the forward branches on them, all True and all False too."""
    first = recipe.trace(call, lambda path: model.get_submodule(path).training, held)
    yield first
    seen = [first.flags]
    for flag in (True, False) if first.flags else ():
        if any(all(value is flag for value in one.values()) for one in seen):
            continue
        another = _always(flag)
        trace = recipe.trace(call, another, held)
        seen.append(trace.flags)
        yield trace


def _always(flag: bool) -> Callable[[str], bool]:
    return lambda path: flag
