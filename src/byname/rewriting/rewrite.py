"""Rewrite: a second model with interjections in it, which shares the parameters, and keeps them for good."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from byname.edits.edited import view_of
from byname.errors import BadArgumentError, NoMatchError, RewriteError
from byname.model.call_graph import Flow, ModelCall
from byname.model.families import NAMED, near_calls_hint
from byname.model.module_tree import has_forward, is_script, modules_by_path, unwrap_module
from byname.model.operations import is_multi_head
from byname.model.selectors import Selector, is_indexed
from byname.model.spot import Spot
from byname.model.where import calls_of, parts_of, resolve_where, unwrapped
from byname.place import NameSegment, Place, parse
from byname.reading.modules import modules_in
from byname.reading.quiet import dynamo_skip
from byname.rewriting.operation_sites import Operations, operations_of, resume_mode, suspend_mode
from byname.rewriting.sites import InterjectionSite, rewriting_state
from byname.source.code import AST_LOCK
from byname.table import listed
from byname.tracing.tracer import trace
from byname.watch.boundary_edges import CallInputs
from byname.watch.interject import Interjection, checked_interjection, label_of, note_inputs
from byname.watch.replacement import cannot_overwrite, overwrite, returns_its_argument

M = TypeVar("M", bound=nn.Module)

_Calls = dict[tuple[str, str], str]
"""Calls of a model: the path of the module, the name of the operation or "" for the module itself, and the place."""


def rewrite(model: M, where: Any, interjection: Interjection, *, example: Any = None, leaf_modules: Any = None) -> M:
    """Return a second model with interjections in it. The model itself is not changed.

        >>> import torch, byname
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> doubled = byname.rewrite(model, "1", lambda name, module, value: 2 * value)
        >>> x = torch.ones(1, 2)
        >>> bool((doubled(x) == 2 * model(x)).all())
        True
        >>> doubled.get_parameter("0.weight") is model[0].weight
        True

    The new model has its own modules of the same classes, which share the model's parameters and buffers under the same
    keys. It can be trained, compiled, copied, saved, and rewritten again, with its interjections. Moving it to another
    device or dtype moves the shared parameters: move the model first.

    Args:
        model: any module that can be copied.
        where: a path of a module or operation, a selector, a module class, a module of the model, or a sequence of
            these.
        interjection: one of the three classes of interjections, or a function ``f(name, module, value)``. Its return
            value, unless None, replaces the value. It is shared, not copied, and not part of ``state_dict``. Modules
            and operations that it calls itself are not reported.
        example: the arguments of one call, as for `byname.interject`; the model runs once with them. Selectors match
            what that run calls, and a part of `where` that it does not reach is refused. Without an example, the first
            call of the new model is taken as one, if there is a selector that needs it.
        leaf_modules: has no effect any more.

    Returns:
        The new model, of the same class.

    Raises:
        NoMatchError: a part of `where` matches nothing. For an operation this may be known in the first call only.
        RewriteError: a part of `where` is neither a module nor an operation, or the model cannot be copied.
        NotAnInterjectionError: `interjection` is not an interjection.
        BadExampleError: `example` is invalid.
    """
    if leaf_modules is not None:
        text = "byname.rewrite(leaf_modules=) no longer has an effect and will be removed: the model is not traced"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
    root = unwrapped(model)
    interjection = checked_interjection(interjection)
    flow = None if example is None else _run_of(root, example)
    calls, waiting = _meant(root, where, flow)
    new = _copy_of(root)
    _put_in(new, calls, interjection)
    if flow is None and (waiting or any(name for _, name in calls)):
        _FirstCall(waiting, calls, interjection).await_it(new)
    return new  # type: ignore[return-value]


def _run_of(model: nn.Module, example: Any) -> Flow:
    rewriting_state.running.append(model)
    try:
        return trace(model, example)
    finally:
        rewriting_state.running.pop()


def _meant(model: nn.Module, where: Any, flow: Flow | None) -> tuple[_Calls, list[Selector]]:
    """Return the calls that are meant, and the selectors that are resolved in the first call; without a flow of it."""
    modules = modules_by_path(model)
    paths = {id(module): path for path, module in modules.items()}
    calls: _Calls = {}
    waiting: list[Selector] = []
    for one in parts_of(where, model):
        resolution, selectors = resolve_where(one, model)
        found = _of_spots(resolution.spots, paths)
        if flow is not None and found and not any(_is_among(_key_of(call, paths), found) for call in flow.calls):
            raise _no_match(one, found.values(), flow.calls, "with example=")
        for selector in selectors:
            if flow is not None:
                found |= _of_selector(selector, paths, flow)
            elif not selector.only_modules or is_indexed(selector) or selector.needs_example:
                waiting.append(selector)
            else:
                found |= _of_selector(selector, paths, Flow(tuple(calls_of(modules)), {}, {}))
        calls = found | calls
    return calls, waiting


def _of_spots(spots: Sequence[Spot], paths: dict[int, str]) -> _Calls:
    found: _Calls = {}
    for spot in spots:
        if spot.kind not in ("module", "operation") or spot.gradient or spot.items or spot.method:
            kind = f"what {spot.method} returns" if spot.name == "return" else f"a {spot.kind}"
            kind = f"inside of {spot.method}, a function that a module calls" if spot.kind == "operation" else kind
            what = "the gradient of a value" if spot.gradient else "an item of a value" if spot.items else kind
            raise RewriteError(
                f"`{spot.full}` is {what}; rewrite reaches only what modules and PyTorch's functions return. "
                "byname.interject(model, where, interjection) reaches it"
            )
        found[paths[id(spot.module)], spot.name if spot.kind == "operation" else ""] = spot.path
    return found


def _of_selector(selector: Selector, paths: dict[int, str], flow: Flow) -> _Calls:
    calls = [flow.calls[index] for index in selector.matches(flow)]
    return {_key_of(call, paths): call.path or "forward" for call in calls}


def _key_of(call: ModelCall, paths: dict[int, str]) -> tuple[str, str]:
    owner = paths[id(call.module)]
    return owner, "" if call.kind == "module" else call.path[len(owner) + 1 if owner else 0 :]


def _is_among(key: tuple[str, str], asked: _Calls) -> bool:
    """Return whether a call is one of those that were asked for, whose names may have wildcards."""
    names = (name for owner, name in asked if owner == key[0])
    return any(NameSegment(name).matches(key[1]) if name and key[1] else name == key[1] for name in names)


def _no_match(where: Any, places: Collection[str], calls: Sequence[ModelCall], ran: str) -> NoMatchError:
    """Return the error for places, meant by `where`, that no call reached; `ran` says when the calls were made."""
    asked = f"`{where}`" if isinstance(where, str | Place) else listed([f"`{one}`" for one in places], NAMED)
    known = list(dict.fromkeys(call.path for call in calls if call.path))
    return NoMatchError(f"{asked} matches nothing that ran {ran}{near_calls_hint(next(iter(places)), known, calls)}")


# Interjections at modules


class ModuleSite(InterjectionSite):
    """An interjection at a module: a forward hook of it."""

    def put_on(self, module: nn.Module) -> None:
        """Hook the module. The handles are kept, so that a process that loads it does not give their numbers again."""
        self.handles = [module.register_forward_hook(self.hook, with_kwargs=True)]
        if module.__dict__.get("inplace") is True:
            self.handles.append(module.register_forward_pre_hook(self.part))
        if self.with_gradients:
            self.handles.append(module.register_forward_pre_hook(self.begin, with_kwargs=True))
            self.handles.append(module.register_forward_hook(self.end, always_call=True))

    @dynamo_skip
    def begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not rewriting_state.running:
            rewriting_state.open.append((module, note_inputs((*args, *kwargs.values()))))

    @dynamo_skip
    def end(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forget the inputs of a call that has ended, also by an error."""
        if not rewriting_state.running:
            rewriting_state.open.end(module)

    def part(self, module: nn.Module, args: Any) -> Any:
        """Let a module that works in place work on a copy while the compiler traces; see `_reported_in_place`."""
        if not torch.compiler.is_compiling() or rewriting_state.running or not args:
            return None
        rewriting_state.parted.append(args[0])
        return (args[0].clone(), *args[1:])

    def hook(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if rewriting_state.running:
            return None
        if torch.compiler.is_compiling() and rewriting_state.parted and module.__dict__.get("inplace") is True:
            new = self(self.path, module, (*args, *kwargs.values()), output)
            return rewriting_state.parted.pop().copy_(output if new is None else new)
        call_inputs = _noted_inputs(module) if self.with_gradients else None
        around = suspend_mode()
        try:
            new = self(self.path, module, (*args, *kwargs.values()) if kwargs else args, output, call_inputs)
            if new is None or not returns_its_argument(module, args, output) or cannot_overwrite(output):
                return new
            overwrite(output, new)
            return output
        finally:
            resume_mode(around)


@dynamo_skip
def _noted_inputs(module: nn.Module) -> CallInputs | None:
    return next((call_inputs for one, call_inputs in reversed(rewriting_state.open) if one is module), None)


class ExtraRepr:
    """The ``extra_repr`` of a module with interjections: its own, and the interjections."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.own = module.__dict__.get("extra_repr")

    @classmethod
    def of(cls, module: nn.Module) -> None:
        """Give it to a module, if it has none yet."""
        if not isinstance(module.__dict__.get("extra_repr"), cls):
            module.__dict__["extra_repr"] = cls(module)

    def __call__(self) -> str:
        """Return the text that ``print(model)`` shows of the module besides its children."""
        own = self.own() if self.own is not None else type(self.module).extra_repr(self.module)
        sites = ", ".join(f"{one.path}: {label_of(one.interjection)}" for one in _interjection_sites(self.module))
        return f"{own}, interjected={{{sites}}}".removeprefix(", ")


def _interjection_sites(module: nn.Module) -> Iterator[InterjectionSite]:
    for hook in module._forward_hooks.values():
        if isinstance(site := getattr(hook, "__self__", None), ModuleSite):
            yield site
    operations = operations_of(module)
    if operations is not None:
        yield from operations.sites


# The copy


def _copy_of(root: M) -> M:
    """Return a copy that shares tensors, and the interjections that are in it already."""
    kept = [site.interjection for module in modules_in(root) for site in _interjection_sites(module)]
    try:
        return view_of(root, kept)
    except BadArgumentError as error:
        raise RewriteError(
            f"this {type(root).__name__} cannot be copied, which a second model needs: {error.__cause__ or error}. "
            "byname.interject(model, where, interjection) works on the model as it is"
        ) from error


def _put_in(model: nn.Module, calls: _Calls, interjection: Interjection) -> None:
    modules = modules_by_path(model)
    operations: dict[str, list[str]] = {}
    for (owner, name), place in calls.items():
        if name:
            operations.setdefault(owner, []).append(name)
        else:
            ModuleSite(place, interjection).put_on(modules[owner])
    for path, names in operations.items():
        Operations.of(modules[path], path).add(names, interjection)
    for owner, _ in calls:
        ExtraRepr.of(modules[owner])
    inside = {id(one): one for path in operations for one in modules_in(modules[path])}
    for module in inside.values():
        if has_forward(module) and not is_script(module) and unwrap_module(module)[0] is module:
            Operations.of(module, "")
    fast = (nn.TransformerEncoderLayer, nn.MultiheadAttention)
    around = {id(one) for module in modules.values() if isinstance(module, fast) for one in modules_in(module)}
    for path in operations:
        if id(modules[path]) in around:
            Operations.of(modules[path], path).keep_off_fast_paths()
    heads = any(is_multi_head(modules[path]) for path in operations)
    for path, module in modules.items() if heads else ():
        if isinstance(module, nn.TransformerEncoder):  # else it makes nested tensors, which its fast path alone takes
            Operations.of(module, path).on = True


class _FirstCall:
    """The first call of a rewritten model, if there was no example; two hooks of the model.

    For the selectors the model runs once with the arguments of the call before the call itself. Of the operations that
    are meant one must run.
    """

    def __init__(self, selectors: list[Selector], calls: _Calls, interjection: Interjection) -> None:
        self.selectors = selectors
        self.calls = calls
        self.interjection = interjection
        self.handles: list[Any] = []

    def await_it(self, model: nn.Module) -> None:
        for owner in _owners(model):
            owner.note(True)
        if self.selectors:
            Operations.of(model, "")  # PyTorch has looked up the forward of the model itself when the hooks are called
        self.handles = [
            model.register_forward_pre_hook(self.resolve, prepend=True, with_kwargs=True),
            model.register_forward_hook(self.check),
        ]

    @dynamo_skip
    def _resolve(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        with AST_LOCK:
            selectors, self.selectors = self.selectors, []
            if not selectors:
                return
            try:
                flow = _run_of(model, (args, kwargs))
                paths = {id(module): path for path, module in modules_by_path(model).items()}
                found: _Calls = {}
                for selector in selectors:
                    found |= _of_selector(selector, paths, flow)
            except BaseException:
                self.selectors = selectors
                raise
            fresh = {key: place for key, place in found.items() if not _is_among(key, self.calls)}
            _put_in(model, fresh, self.interjection)

    def resolve(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        """Put the interjection where the selectors match, before the first call."""
        if self.selectors and not rewriting_state.running:
            self._resolve(model, args, kwargs)

    def check(self, model: nn.Module, args: Any, output: Any) -> None:
        """Refuse the first call if none of the operations has run."""
        if not torch.compiler.is_compiling() and not rewriting_state.running:
            self._check(model)

    @dynamo_skip
    def _check(self, model: nn.Module) -> None:
        for handle in self.handles:
            handle.remove()
        asked = [place for (_, name), place in self.calls.items() if name]
        seen = {path: owner.module for owner in _owners(model) for path in owner.seen or ()}
        for owner in _owners(model):
            owner.note(False)
        if seen and asked and not any(parse(place).matches(path) for place in asked for path in seen if path):
            ran = ((path, module) for path, module in seen.items() if path)
            calls = [ModelCall(path, path.rpartition(".")[2], "operation", module) for path, module in ran]
            raise _no_match(asked[0] if len(asked) == 1 else None, asked, calls, "in the first call")


def _owners(model: nn.Module) -> list[Operations]:
    found = (operations_of(module) for module in modules_by_path(model).values())
    return [one for one in found if one is not None and one.sites]
